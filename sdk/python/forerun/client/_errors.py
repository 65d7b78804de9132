"""Every failure that a user of the client can meet.

The class says what to do about it, `reason` is stable and safe to branch on (docs/reference/errors.md), the message is
for people and holds no content of the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from forerun.client._results import Result

_DOMAIN: Final = "forerun"
_STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
_NANOS: Final = 1_000_000_000
_TOO_LARGE: Final = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")


class ForerunClientError(Exception):
    """The root of all errors of the client.

    Args:
        reason: What happened: a stable, upper-case name.
        message: One sentence for a person.
        metadata: Named details, such as a limit, a setting or a path.
        retry_after_seconds: When asking again makes sense; None where it does not help or is not known.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class NotConfigured(ForerunClientError):
    """The client does not know where the platform is, or has no token; the message says how to tell it."""


class InvalidRequest(ForerunClientError):
    """What was asked is wrong in itself, and nothing was sent or run; asking again unchanged cannot help."""


class NotAuthorized(ForerunClientError):
    """The token is missing, unknown or revoked, or its owner may not do this."""


class PlatformUnavailable(ForerunClientError):
    """The platform cannot be reached or is too busy; asking again after a while may help."""


class SessionClosed(ForerunClientError):
    """The session has ended here: closed, taken over by another client, or ended by the platform."""


class PlatformError(ForerunClientError):
    """The platform failed in a way that a client cannot do anything about."""


class ResultNotJson(ForerunClientError, ValueError):
    """The content of a result is not strict JSON. Its bytes are still there, in `Result.content`."""


class CallError(ForerunClientError):
    """A call ended without an answer of its tool. `result` is the whole end of the call."""

    def __init__(self, result: Result) -> None:
        failure = result.failure
        super().__init__(
            failure.reason if failure else result.status.name,
            failure.message if failure else f"{result.call.name} ended as {result.status.value}",
            metadata=failure.metadata if failure else {},
            retry_after_seconds=failure.retry_after_seconds if failure else None,
        )
        self.result = result


class CallRejected(CallError):
    """The call was refused before anything ran."""


class CallTimeout(CallError):
    """The tool did not answer in time and was told to stop."""


class CallCancelled(CallError):
    """The call was taken back; the tool was told to stop."""


class CallUnavailable(CallError):
    """The way to the tool failed and nothing took effect; the call may be asked again."""


class OutcomeUnknown(CallError):
    """The call may have taken effect and it cannot be known. Look at the tool before asking again."""


class StreamFailure(Exception):
    """How a stream ended, inside the client.

    Attributes:
        error: What a user is told.
        transient: Connecting again may help.
    """

    def __init__(self, error: ForerunClientError, *, transient: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.transient = transient


_CLASS_OF_CODE: Final[Mapping[grpc.StatusCode, type[ForerunClientError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: NotAuthorized,
    grpc.StatusCode.PERMISSION_DENIED: NotAuthorized,
    grpc.StatusCode.UNAVAILABLE: PlatformUnavailable,
    grpc.StatusCode.ABORTED: PlatformUnavailable,
    grpc.StatusCode.CANCELLED: PlatformUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: PlatformUnavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: PlatformUnavailable,
}

_TRANSPORT_REASON: Final[Mapping[grpc.StatusCode, str]] = {
    grpc.StatusCode.UNAVAILABLE: "PEER_UNAVAILABLE",
    grpc.StatusCode.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    grpc.StatusCode.CANCELLED: "CALL_INTERRUPTED",
    grpc.StatusCode.UNIMPLEMENTED: "METHOD_NOT_FOUND",
}

# A session that ended is not a wrong request: these reasons are what a user of a session has to know apart.
_SESSION_REASONS: Final = frozenset({"SESSION_TAKEN_OVER", "SESSION_ENDED", "SESSION_IDLE", "SESSION_NOT_FOUND"})

_TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
# Codes that grpc itself uses for a stream that was torn; a service that sends them adds an ErrorInfo.
_TORN: Final = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})


def from_rpc_error(error: grpc.aio.AioRpcError, address: str) -> StreamFailure:
    """What a failed call means for its user."""
    code = error.code()
    info, retry_after_seconds, message = _details(error)
    reason = info.reason if info is not None else _TRANSPORT_REASON.get(code, "UNKNOWN")
    metadata = dict(info.metadata) if info is not None else {}
    if info is None and code is grpc.StatusCode.UNAVAILABLE:
        message = f"no platform answers at {address} ({message}); locally, `forerun up` starts one"
        metadata["address"] = address
    if info is None and (large := _TOO_LARGE.search(message)) is not None:
        reason = "MESSAGE_TOO_LARGE"
        message = f"a message of {large[1]} bytes is above the limit of {large[2]} bytes (MESSAGE_BYTES)"
        metadata.update(limit="MESSAGE_BYTES", size_bytes=large[1], limit_bytes=large[2])
    kind = SessionClosed if reason in _SESSION_REASONS else _CLASS_OF_CODE.get(code, PlatformError)
    transient = code in _TRANSIENT or (code in _TORN and info is None)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        transient = retry_after_seconds is not None  # without a time, repeating it is only load
    return StreamFailure(
        kind(reason, message, metadata=metadata, retry_after_seconds=retry_after_seconds), transient=transient
    )


def _details(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo | None, float | None, str]:
    """ErrorInfo of the platform, the delay of RetryInfo, and the text."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    found: error_details_pb2.ErrorInfo | None = None
    retry_after_seconds: float | None = None
    for key, value in error.trailing_metadata() or ():
        if key != _STATUS_DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except DecodeError:
            break  # not one of ours: code and text remain
        for detail in status.details:
            if detail.Unpack(info) and info.domain == _DOMAIN:
                found = info
            elif detail.Unpack(retry):
                retry_after_seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / _NANOS
    return found, retry_after_seconds, error.details() or ""
