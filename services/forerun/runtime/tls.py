"""Encryption between processes: both sides prove who they are with certificates of one authority (mutual TLS).

Certificates are replaced on disk while processes run. A server looks at its files with each handshake; a channel takes
what is there when it is made.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from forerun.runtime.errors import ErrorReason, FailedPrecondition

CA_CERTIFICATE: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
"""Names of the files of a folder with certificates, such as a mounted Secret."""

_LOG: Final = logging.getLogger(__name__)
_MAX_FILE_BYTES: Final = 1024 * 1024

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files in PEM, and what is asked of the other side.

    Attributes:
        certificate_file: The process's own certificate, followed by those between it and the authority.
        key_file: Its key.
        ca_file: The authority that the other side's certificate has to come from.
        ask_clients: A server refuses clients without a certificate of that authority.
        server_name: The name that servers prove to have, whatever address they are reached by; empty takes the
            address. Pods are reached by addresses that no certificate knows beforehand.
    """

    certificate_file: Path
    key_file: Path
    ca_file: Path
    ask_clients: bool = True
    server_name: str = ""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Those of a server. Changed files are used from the next handshake on.

        Raises:
            FailedPrecondition: a file cannot be read.
        """
        files = _Files(self)
        return grpc.dynamic_ssl_server_credentials(
            files.configuration(),
            files.changed,  # type: ignore[arg-type]  # the stubs do not say that it may give nothing new
            require_client_authentication=self.ask_clients,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Those of a channel that is made now.

        Raises:
            FailedPrecondition: a file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca_file),
            private_key=_read(self.key_file),
            certificate_chain=_read(self.certificate_file),
        )

    def channel_options(self) -> list[tuple[str, int | str]]:
        """Arguments of a channel."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def trusting(ca_file: Path) -> ssl.SSLContext:
    """What a client encrypts with that trusts one authority and no other.

    Raises:
        FailedPrecondition: the file cannot be read, or holds no certificate.
    """
    try:
        return ssl.create_default_context(cadata=_read(ca_file).decode())
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise FailedPrecondition(
            ErrorReason.SETTING_INVALID, f"{ca_file} holds no certificate", metadata={"file": str(ca_file)}
        ) from error


class _Files:
    """The files of a server, read again when they have changed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._stamp: _Stamp = ()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        stamp = _stamp(tls)
        made = grpc.ssl_server_certificate_configuration(
            [(_read(tls.key_file), _read(tls.certificate_file))],
            root_certificates=_read(tls.ca_file) if tls.ask_clients else None,
        )
        self._stamp = stamp
        return made

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by grpc before each handshake. What cannot be read leaves what there was in force."""
        try:
            return None if _stamp(self._tls) == self._stamp else self.configuration()
        except FailedPrecondition as error:
            _LOG.error("certificates cannot be read again", extra={"fields": {"error.type": type(error).__name__}})
            return None


def _stamp(tls: Tls) -> _Stamp:
    return tuple(_status(path) for path in (tls.certificate_file, tls.key_file, tls.ca_file))


def _status(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise FailedPrecondition(ErrorReason.SETTING_INVALID, f"{path} is too large to hold certificates")
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> FailedPrecondition:
    return FailedPrecondition(
        ErrorReason.DEPENDENCY_MISSING, f"{path} cannot be read: {error.strerror}", metadata={"file": str(path)}
    )
