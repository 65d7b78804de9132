"""Secrets of one namespace, by the API server, with the rights of the pod that this runs in."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx

from forerun.runtime.errors import ErrorReason, FailedPrecondition, Unavailable

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SERVER: Final = "https://kubernetes.default.svc"
_SECONDS: Final = 10.0
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404


class Secrets:
    """Reads, makes and completes Secrets.

    Args:
        client: Reaches the API server with a token.
        namespace: Where they are.
    """

    def __init__(self, client: httpx.Client, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}"

    @classmethod
    def of_this_pod(cls, account: Path = _ACCOUNT, server: str = _SERVER) -> Secrets:
        """With the service account of this pod.

        Raises:
            FailedPrecondition: this is no pod, or it has no token.
        """
        try:
            token = (account / "token").read_text()
            namespace = (account / "namespace").read_text()
            trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
        except OSError as error:
            raise FailedPrecondition(
                ErrorReason.DEPENDENCY_MISSING,
                f"{account} cannot be read: this command runs in a pod with a service account",
            ) from error
        headers = {"authorization": f"Bearer {token}"}
        client = httpx.Client(base_url=server, headers=headers, verify=trusted, timeout=_SECONDS, trust_env=False)
        return cls(client, namespace)

    def __enter__(self) -> Secrets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def read(self, name: str) -> dict[str, bytes] | None:
        """The content of one; None when it does not exist.

        Raises:
            ForerunError: the API server cannot be reached, or refuses.
        """
        response = self._call("GET", f"{self._path}/secrets/{name}", allowed=_NOT_FOUND)
        if response.status_code == _NOT_FOUND:
            return None
        return {key: base64.b64decode(value) for key, value in (response.json().get("data") or {}).items()}

    def add(self, name: str, content: Mapping[str, bytes], *, labels: Mapping[str, str]) -> None:
        """Adds entries to one, which is made where it does not exist. Entries of other names stay.

        Raises:
            ForerunError: the API server cannot be reached, or refuses.
        """
        data = {key: base64.b64encode(value).decode() for key, value in content.items()}
        metadata = {"name": name, "labels": dict(labels)}
        made = self._call(
            "POST",
            f"{self._path}/secrets",
            allowed=_CONFLICT,
            json={"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data},
        )
        if made.status_code == _CONFLICT:
            self._call(
                "PATCH",
                f"{self._path}/secrets/{name}",
                json={"data": data},
                headers={"content-type": "application/merge-patch+json"},
            )

    def remove(self, name: str) -> bool:
        """Removes one; whether it was there.

        Raises:
            ForerunError: the API server cannot be reached, or refuses.
        """
        response = self._call("DELETE", f"{self._path}/secrets/{name}", allowed=_NOT_FOUND)
        return response.status_code != _NOT_FOUND

    def _call(self, method: str, path: str, *, allowed: int = 0, **options: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **options)
        except httpx.TransportError as error:
            raise Unavailable(ErrorReason.DEPENDENCY_MISSING, f"the API server cannot be reached: {error}") from error
        if response.is_error and response.status_code != allowed:
            raise FailedPrecondition(
                ErrorReason.DEPENDENCY_MISSING, f"{method} {path}: {response.status_code} {_message(response)}"
            )
        return response


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase
