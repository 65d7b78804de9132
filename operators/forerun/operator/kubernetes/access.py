"""How to reach the API server and as whom: from inside of a pod, or by a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from forerun.runtime.errors import ErrorReason, FailedPrecondition

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FALLBACK_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and what proves who we are.

    Attributes:
        url: Its address.
        tls: Trusts its certificate, and holds our own where we have one.
        token_file: File with a bearer token that is replaced before it expires; read for each request.
        namespace: The namespace that we are in.
    """

    url: str
    tls: ssl.SSLContext
    token_file: Path | None
    namespace: str

    def token(self) -> str | None:
        """The bearer token of now."""
        return None if self.token_file is None else self.token_file.read_text().strip()


def find_access(kubeconfig: Path | None) -> Access:
    """The access of this process.

    Raises:
        FailedPrecondition: neither a kubeconfig was given nor are we in a pod with a service account.
    """
    if kubeconfig is not None:
        return _by_kubeconfig(kubeconfig)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token, authority = _ACCOUNT / "token", _ACCOUNT / "ca.crt"
    if not host or not token.exists():
        raise _missing("this process is in no pod with a service account; set FORERUN_OPERATOR_KUBECONFIG")
    if ":" in host:
        host = f"[{host}]"
    namespace = _ACCOUNT / "namespace"
    return Access(
        url=f"https://{host}:{port}",
        tls=ssl.create_default_context(cafile=str(authority)),
        token_file=token,
        namespace=namespace.read_text().strip() if namespace.exists() else _FALLBACK_NAMESPACE,
    )


def _by_kubeconfig(path: Path) -> Access:
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        tls = ssl.create_default_context(cadata=_text(cluster, "certificate-authority", path.parent))
        if "client-certificate" in user or "client-certificate-data" in user:
            _load_pair(tls, user, path.parent)
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise _missing(f"the kubeconfig {path} cannot be used ({type(error).__name__}: {error})") from error
    if "exec" in user or "token" in user:
        raise _missing(f"the kubeconfig {path} needs a certificate or a tokenFile; exec and token are not supported")
    token = user.get("tokenFile")
    return Access(
        url=cluster["server"].rstrip("/"),
        tls=tls,
        token_file=None if token is None else path.parent / token,
        namespace=context.get("namespace", _FALLBACK_NAMESPACE),
    )


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise KeyError(name)


def _text(entry: dict[str, Any], name: str, folder: Path) -> str:
    """A PEM text that lies in the entry itself or in a file that it names."""
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"]).decode()
    return (folder / str(entry[name])).read_text()


def _load_pair(tls: ssl.SSLContext, user: dict[str, Any], folder: Path) -> None:
    # The standard library reads keys from files only.
    with tempfile.TemporaryDirectory() as scratch:
        pair = []
        for name in ("client-certificate", "client-key"):
            file = Path(scratch) / name
            file.touch(mode=0o600)
            file.write_text(_text(user, name, folder))
            pair.append(str(file))
        tls.load_cert_chain(*pair)


def _missing(message: str) -> FailedPrecondition:
    return FailedPrecondition(ErrorReason.DEPENDENCY_MISSING, message)
