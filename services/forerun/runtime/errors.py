"""Every failure that crosses a room's border.

One hierarchy: the class says what a caller can do about it (and is the gRPC status code), the `ErrorReason` says what
happened (stable, documented, safe to branch on), the message says it to a person (it names the limit and the setting
that changes it, and holds no content of a session), the metadata carries the values. On the wire an error is a gRPC
status with `google.rpc.ErrorInfo` and, where repeating helps, `google.rpc.RetryInfo`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

ERROR_DOMAIN: Final = "forerun"
STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"

# What a client reads when a process failed in a way that it did not expect; the detail stays in the process's log.
INTERNAL_MESSAGE: Final = "internal error; the service's log holds the detail under this call's trace id"

_MAX_METADATA_VALUE_CHARS: Final = 256
_NANOS: Final = 1_000_000_000
_TOO_LARGE: Final = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")


class ErrorReason(StrEnum):
    """Why something failed. Values are part of the API: added, never renamed."""

    ARGUMENT_INVALID = "ARGUMENT_INVALID"
    """A field of the request breaks its documented rule; the metadata names the field."""
    ARGUMENTS_NOT_JSON = "ARGUMENTS_NOT_JSON"
    """The arguments of an action are not strict JSON (duplicate keys, NaN, bad UTF-8, too deep or trailing text)."""
    ARGUMENTS_REFUSED = "ARGUMENTS_REFUSED"
    """The arguments of an action do not satisfy the tool's input schema."""
    DEADLINE_MISSING = "DEADLINE_MISSING"
    """A unary call came without a deadline; every unary call needs one."""
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    """A message is above the size limit of its channel; send it in chunks or by digest."""
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE"
    """A tool returned more than the platform carries; give its contract an output cap."""
    CALL_KEY_CONFLICT = "CALL_KEY_CONFLICT"
    """A call key (session, turn, index) was used before with another tool or other arguments; nothing was executed."""
    RESULT_NOT_JSON = "RESULT_NOT_JSON"
    """A tool returned NaN, Infinity or something else that strict JSON cannot hold; the metadata names the path."""
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    """No session with this key exists for the tenant."""
    SESSION_EXISTS = "SESSION_EXISTS"
    """A session with this key exists already and was opened with other parameters."""
    SESSION_ENDED = "SESSION_ENDED"
    """The session has ended and takes no more events."""
    SESSION_TAKEN_OVER = "SESSION_TAKEN_OVER"
    """Another replica owns the session now; connect again to reach it."""
    SESSION_IDLE = "SESSION_IDLE"
    """The stream of the session was silent for longer than the idle bound."""
    PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION"
    """A message came at a point of the stream where the protocol does not allow it."""
    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    """No tool of this name is known for the tenant."""
    TOOL_FAILED = "TOOL_FAILED"
    """The tool, or the way to it, failed before it gave an answer."""
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    """The tool did not answer within the timeout of its contract."""
    STATE_LOST = "STATE_LOST"
    """The connection that kept a session's state with a tool server is gone; nothing was executed. Begin again."""
    WORKSPACE_LOST = "WORKSPACE_LOST"
    """The worker with the session's workspace is gone, or has lost it; nothing was executed. Open a new session."""
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    """A call that may not be repeated may have taken effect, and no one can know."""
    NO_FREE_SLOT = "NO_FREE_SLOT"
    """The worker has no free slot of the asked class."""
    NO_FREE_RUNNER = "NO_FREE_RUNNER"
    """Every runner is in use by another session; nothing was executed. The message names the setting."""
    PREEMPTED = "PREEMPTED"
    """A speculation had to make room for authoritative work."""
    QUEUE_FULL = "QUEUE_FULL"
    """A bounded queue is full."""
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    """A budget of the tenant, session or provider is used up."""
    RATE_LIMITED = "RATE_LIMITED"
    """A provider's or the platform's rate limit is reached; the retry delay says when it opens again."""
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    """No policy names a model of this name for the tenant."""
    MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
    """A provider of a model cannot be reached, or failed before its answer was complete."""
    MODEL_TIMEOUT = "MODEL_TIMEOUT"
    """A provider of a model did not send a token in time, or its answer took too long; the metadata names the limit."""
    MODEL_REFUSED = "MODEL_REFUSED"
    """A provider of a model does not accept the request; repeating it cannot help."""
    MODEL_UNAUTHORIZED = "MODEL_UNAUTHORIZED"
    """A provider of a model does not accept the secret that the policy names."""
    MODEL_PROTOCOL = "MODEL_PROTOCOL"
    """A provider of a model sent something that is no chat completion."""
    LIMIT_MEMORY = "LIMIT_MEMORY"
    """The call used more memory than its limit."""
    LIMIT_PIDS = "LIMIT_PIDS"
    """The call started more processes than its limit."""
    LIMIT_CPU = "LIMIT_CPU"
    """The call used more CPU time than its limit."""
    LIMIT_DISK = "LIMIT_DISK"
    """The call wrote more to disk than its limit."""
    LIMIT_OUTPUT = "LIMIT_OUTPUT"
    """The call wrote more output than its limit."""
    LIMIT_WALL_TIME = "LIMIT_WALL_TIME"
    """The call ran longer than its limit."""
    ISOLATION_UNAVAILABLE = "ISOLATION_UNAVAILABLE"
    """The policy asks for a level of isolation that this machine cannot give."""
    EGRESS_DENIED = "EGRESS_DENIED"
    """The tool wanted to connect to a destination that its policy does not list."""
    PATH_DENIED = "PATH_DENIED"
    """A path leads out of the workspace."""
    POLICY_INVALID = "POLICY_INVALID"
    """A policy does not validate; the metadata names the path of the fault."""
    POLICY_DENIED = "POLICY_DENIED"
    """The policy does not allow this."""
    SNAPSHOT_NOT_FOUND = "SNAPSHOT_NOT_FOUND"
    """No snapshot, fork or object with this digest or id exists for the tenant."""
    SNAPSHOT_CORRUPT = "SNAPSHOT_CORRUPT"
    """Stored bytes do not match their digest."""
    MERGE_CONFLICT = "MERGE_CONFLICT"
    """Both sides changed the same path since the fork; the metadata lists paths."""
    NOT_FOUND = "NOT_FOUND"
    """The named thing does not exist for this tenant."""
    ALREADY_EXISTS = "ALREADY_EXISTS"
    """The named thing exists already."""
    STATE_CONFLICT = "STATE_CONFLICT"
    """The request does not fit the present state of what it names."""
    SEQUENCE_MISMATCH = "SEQUENCE_MISMATCH"
    """A stream moved on since it was last read: somebody else wrote to it."""
    REVISION_CONFLICT = "REVISION_CONFLICT"
    """A key changed since it was last read: read again and retry."""
    BROKER_UNAVAILABLE = "BROKER_UNAVAILABLE"
    """The message broker does not answer."""
    STREAM_FULL = "STREAM_FULL"
    """A stream or store of the broker has reached its configured size."""
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    """A disk or an object store cannot be read or written."""
    PEER_UNAVAILABLE = "PEER_UNAVAILABLE"
    """Another service cannot be reached or closed the connection."""
    CALL_INTERRUPTED = "CALL_INTERRUPTED"
    """The service ended a call that was still running, for example because it stops."""
    CALL_CANCELLED = "CALL_CANCELLED"
    """The call was cancelled by its caller or by someone on the way."""
    SHUTTING_DOWN = "SHUTTING_DOWN"
    """The service is stopping and takes no new work; another replica does."""
    SWITCHED_OFF = "SWITCHED_OFF"
    """Speculation is switched off for this tenant or everywhere."""
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    """The caller's deadline passed before the answer was there."""
    CREDENTIAL_MISSING = "CREDENTIAL_MISSING"
    """The call carries no token."""
    CREDENTIAL_REFUSED = "CREDENTIAL_REFUSED"
    """The token is unknown or was revoked."""
    CALLER_NOT_ALLOWED = "CALLER_NOT_ALLOWED"
    """The caller is known and may not do this."""
    METHOD_NOT_FOUND = "METHOD_NOT_FOUND"
    """The server does not know the called method: client and server are of different versions."""
    SETTING_INVALID = "SETTING_INVALID"
    """A setting, or a file that a setting names, is wrong or missing."""
    DEPENDENCY_MISSING = "DEPENDENCY_MISSING"
    """A program, library or right that is needed is missing on this machine; the message says how to get it."""
    INTERNAL = "INTERNAL"
    """A defect of the platform; the log holds the detail."""
    UNKNOWN = "UNKNOWN"
    """The peer sent a reason that this version does not know, or none."""


class ForerunError(Exception):
    """The root of all errors that cross a border. Raise a subclass.

    Args:
        reason: What happened.
        message: One sentence for a person. Holds no content of sessions: it reaches logs and clients.
        metadata: Values that belong to the reason, such as names, sizes and limits.
        retry_after_seconds: When a repetition has a chance; None when waiting does not help or is not known.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL

    def __init__(
        self,
        reason: ErrorReason,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata: Mapping[str, str] = dict(metadata) if metadata else {}
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call the class with the message alone; errors of a process pool go through pickling.
        return _blank, (type(self), self.message), self.__dict__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason.value}: {self.message})"


def _blank(kind: type[ForerunError], message: str) -> ForerunError:
    return kind.__new__(kind, message)


class InvalidArgument(ForerunError):
    """The request is wrong in itself; repeating it cannot help."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(ForerunError):
    """What the request names does not exist for this caller."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(ForerunError):
    """What the request wants to create exists already."""

    code = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(ForerunError):
    """The state of the system does not allow the request; repeating it unchanged cannot help."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(ForerunError):
    """A concurrent change or a cancellation got in between; read the state again, then decide."""

    code = grpc.StatusCode.ABORTED


class PermissionDenied(ForerunError):
    """The caller is known and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(ForerunError):
    """The caller is not known; the message says how to get a token."""

    code = grpc.StatusCode.UNAUTHENTICATED


class ResourceExhausted(ForerunError):
    """A limit is reached. The message names it and the setting that changes it."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(ForerunError):
    """The time the caller allowed is over; the work may or may not have been done."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Unavailable(ForerunError):
    """A dependency cannot be reached; repeatable work may be repeated after a while."""

    code = grpc.StatusCode.UNAVAILABLE


class Bug(ForerunError):
    """A defect of the platform: a broken invariant, or a peer that does not keep the contract."""

    code = grpc.StatusCode.INTERNAL


_CLASS_OF_CODE: Final[Mapping[grpc.StatusCode, type[ForerunError]]] = {
    **{
        kind.code: kind
        for kind in (
            InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, Aborted, PermissionDenied, Unauthenticated,
            ResourceExhausted, DeadlineExceeded, Unavailable, Bug,
        )
    },
    # A call that was cancelled here raises CancelledError: this status always comes from the other end or the way.
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.UNIMPLEMENTED: FailedPrecondition,
    grpc.StatusCode.UNKNOWN: Bug,
    grpc.StatusCode.DATA_LOSS: Bug,
}  # fmt: skip

STARTED_KEY: Final = "started"
"""Key of an error's metadata. `false`: the call certainly reached no handler, so it may be asked again."""

NEVER_STARTED: Final = "false"
"""The only value of that key."""

# How grpc says that a call found no connection, so that nothing of it has left this process. In another wording a
# refused call only counts as one that may have started, which is the safe reading.
_NO_CONNECTION: Final = ("failed to connect to all addresses", "connections to all backends failing")

# What an error without ErrorInfo means: it was made by the transport, not by one of our services.
_TRANSPORT_REASON: Final[Mapping[grpc.StatusCode, ErrorReason]] = {
    grpc.StatusCode.UNAVAILABLE: ErrorReason.PEER_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: ErrorReason.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED: ErrorReason.CALL_INTERRUPTED,
    grpc.StatusCode.UNIMPLEMENTED: ErrorReason.METHOD_NOT_FOUND,
}

_CODE_OF_NUMBER: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


def to_rpc_status(error: BaseException) -> status_pb2.Status:
    """The status that tells a caller about an error; anything unexpected becomes INTERNAL with a fixed message."""
    if not isinstance(error, ForerunError):
        error = Bug(ErrorReason.INTERNAL, INTERNAL_MESSAGE)
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=ERROR_DOMAIN)
    for key, value in error.metadata.items():
        info.metadata[key] = value[:_MAX_METADATA_VALUE_CHARS]
    details = [_packed(info)]
    if error.retry_after_seconds is not None:
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=_duration(error.retry_after_seconds))))
    return status_pb2.Status(code=error.code.value[0], message=error.message, details=details)


def from_rpc_status(status: status_pb2.Status) -> ForerunError:
    """The typed error of a received status."""
    code = _CODE_OF_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    reason = _TRANSPORT_REASON.get(code, ErrorReason.UNKNOWN)
    metadata: dict[str, str] = {}
    retry_after_seconds: float | None = None
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            reason = ErrorReason(info.reason) if info.reason in ErrorReason.__members__ else ErrorReason.UNKNOWN
            metadata = dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after_seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / _NANOS
    kind = _CLASS_OF_CODE.get(code, Bug)
    return kind(reason, status.message, metadata=metadata, retry_after_seconds=retry_after_seconds)


def message_too_large(size_bytes: int, limit_bytes: int) -> ResourceExhausted:
    """The error of a message above its channel's limit. Repeating it cannot help."""
    return ResourceExhausted(
        ErrorReason.MESSAGE_TOO_LARGE,
        f"a message of {size_bytes} bytes is above the limit of {limit_bytes} bytes (MESSAGE_BYTES); send it in chunks "
        "or by digest",
        metadata={"limit": "MESSAGE_BYTES", "size_bytes": str(size_bytes), "limit_bytes": str(limit_bytes)},
    )


def from_rpc_error(error: grpc.aio.AioRpcError) -> ForerunError:
    """The typed error of a failed call, whichever network it went over."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            try:
                return from_rpc_status(status_pb2.Status.FromString(value))
            except DecodeError:
                break  # not one of ours: fall back to code and text
    found = _too_large(error) or from_rpc_status(
        status_pb2.Status(code=error.code().value[0], message=error.details() or "")
    )
    if isinstance(found, Unavailable) and found.message.startswith(_NO_CONNECTION):
        found.metadata = {STARTED_KEY: NEVER_STARTED}
    return found


def never_started(error: ForerunError) -> bool:
    """Whether a failed call has certainly not reached its handler."""
    return error.metadata.get(STARTED_KEY) == NEVER_STARTED


def _too_large(error: grpc.aio.AioRpcError) -> ForerunError | None:
    """The transport's own error about a message's size, with both numbers and what to do about it."""
    match = _TOO_LARGE.search(error.details() or "") if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else None
    if match is None:
        return None
    return message_too_large(int(match.group(1)), int(match.group(2)))


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _duration(seconds: float) -> duration_pb2.Duration:
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * _NANOS))
