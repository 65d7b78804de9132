"""The key by which a runner proves what it is: used by one process, once.

Whoever starts the pod puts certificate, key and the workers' authority into a directory. The runner takes the key out
of it before it listens, and no command runs before that: a runner that is started a second time in the same place finds
no key and serves nobody, whatever a command has left there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.tls import CA_CERTIFICATE, CERTIFICATE, KEY


@dataclass(frozen=True, slots=True)
class RunnerKey:
    """What a runner serves with. Its callers need a certificate of the same authority.

    Attributes:
        certificate: Its own, in PEM.
        key: Its key.
        authority: Where the workers' certificate comes from.
    """

    certificate: bytes
    key: bytes
    authority: bytes

    def server_credentials(self) -> grpc.ServerCredentials:
        """Those of its server."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], root_certificates=self.authority, require_client_auth=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """A runner calls nobody."""
        raise FailedPrecondition(ErrorReason.CALLER_NOT_ALLOWED, "a runner calls nobody")

    def channel_options(self) -> list[tuple[str, int | str]]:
        """A runner calls nobody."""
        return []


def take_key(directory: Path) -> RunnerKey | None:
    """Takes the key out of its directory; None where it was taken before.

    Raises:
        FailedPrecondition: The directory holds something else, or the key cannot be removed.
    """
    try:
        key = (directory / KEY).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _wrong(directory, error) from error
    try:
        taken = RunnerKey((directory / CERTIFICATE).read_bytes(), key, (directory / CA_CERTIFICATE).read_bytes())
        (directory / KEY).unlink()
    except OSError as error:
        raise _wrong(directory, error) from error
    return taken


def _wrong(directory: Path, error: OSError) -> FailedPrecondition:
    return FailedPrecondition(
        ErrorReason.DEPENDENCY_MISSING,
        f"the key of this runner in {directory} cannot be used: {error.strerror}",
        metadata={"file": str(directory)},
    )
