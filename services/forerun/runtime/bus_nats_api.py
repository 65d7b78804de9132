"""Requests to JetStream: appends and its JSON interface, with its errors as ours.

The driver's details end here: nothing above this module knows a NATS error code.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from forerun.runtime import bus_headers
from forerun.runtime.bus import Message
from forerun.runtime.bus_errors import AppendUncertain, MessageTooLarge, SequenceMismatch
from forerun.runtime.bus_nats_wire import NoRespondersError, NotSentError, UnansweredError, Wire
from forerun.runtime.errors import Bug, ErrorReason, FailedPrecondition, ForerunError, ResourceExhausted, Unavailable

API: Final = "$JS.API"

# A replicated stream says "wrong last sequence" without telling the right one.
_WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
_MESSAGE_TOO_LARGE: Final = 10054
_STORE_FAILED: Final = 10077
_NO_SPACE: Final = frozenset({10023, 10028, 10047})
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = frozenset({500, 503})
_BAD_REQUEST: Final = 400
_ACTUAL_SEQUENCE: Final = re.compile(r"wrong last sequence: (\d+)")


class ApiError(Exception):
    """JetStream refused.

    Attributes:
        code: Kind of refusal, as in HTTP.
        err_code: The exact refusal.
        description: Its text.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{err_code}: {description}")
        self.code = code
        self.err_code = err_code
        self.description = description

    def typed(self) -> ForerunError:
        """The refusal as an error of ours, where nothing more special is known."""
        metadata = {"broker_code": str(self.err_code)}
        if self.err_code in _NO_SPACE:
            return ResourceExhausted(
                ErrorReason.STREAM_FULL, "the broker has no space left; see max_file_store", metadata=metadata
            )
        if self.code in _UNAVAILABLE:
            return unavailable("JetStream is not available at the moment", metadata)
        if self.code == _BAD_REQUEST:
            return FailedPrecondition(ErrorReason.STATE_CONFLICT, "the broker refuses the request", metadata=metadata)
        return Bug(ErrorReason.INTERNAL, f"unexpected answer of the broker: {self.err_code}", metadata=metadata)


def unavailable(message: str, metadata: Mapping[str, str] | None = None) -> Unavailable:
    """The broker cannot be reached; nothing was stored, nor will be."""
    return Unavailable(ErrorReason.BROKER_UNAVAILABLE, message, metadata={"stored": "no", **(metadata or {})})


async def append(wire: Wire, subject: str, data: bytes, header_block: bytes, *, timeout_seconds: float) -> int:
    """Publishes to a stream and returns the sequence that the broker acknowledged.

    Raises:
        ApiError: the broker refused.
        AppendUncertain, Unavailable, PermissionDenied: see `Bus.append`.
    """
    try:
        body, _ = await wire.request(subject, data, header_block, timeout_seconds=timeout_seconds)
    except NotSentError:
        raise unavailable("not connected to the broker") from None
    except UnansweredError as error:
        raise AppendUncertain(f"no acknowledgement: {error}") from None
    except NoRespondersError:
        raise unavailable("no stream takes this subject now") from None
    answer = json.loads(body)
    if "error" in answer:
        raise _error(answer["error"])
    return int(answer["seq"])


def append_error(error: ApiError, *, size_bytes: int, expected_last_sequence: int | None) -> ForerunError:
    """What a refused append means."""
    if error.err_code in _WRONG_LAST_SEQUENCE and expected_last_sequence is not None:
        actual = _ACTUAL_SEQUENCE.search(error.description)
        return SequenceMismatch(expected_last_sequence, int(actual.group(1)) if actual else None)
    if error.err_code == _MESSAGE_TOO_LARGE:
        return MessageTooLarge(size_bytes, size_bytes - 1)
    if error.err_code == _STORE_FAILED or error.err_code in _NO_SPACE:
        return ResourceExhausted(ErrorReason.STREAM_FULL, "the stream has reached its size; see the topology")
    if error.code in _UNAVAILABLE:
        # The broker knows of it and may still store it.
        return AppendUncertain("the broker answered without having stored it yet")
    return error.typed()


def is_conflict(error: ApiError) -> bool:
    """Whether a write was refused because the subject's last sequence is another one."""
    return error.err_code in _WRONG_LAST_SEQUENCE


def is_missing(error: ApiError) -> bool:
    """Whether what was asked for does not exist."""
    return error.code == _NOT_FOUND


async def call(
    wire: Wire, subject: str, request: Mapping[str, object] | None = None, *, timeout_seconds: float | None = None
) -> dict[str, Any]:
    """Calls the JSON interface, for example `STREAM.INFO.EVENTS`, and returns the answer.

    Raises:
        ApiError: the broker refused.
        Unavailable: no answer.
    """
    body = json.dumps(request).encode() if request else b""
    bound = wire.options.request_timeout_seconds if timeout_seconds is None else timeout_seconds
    try:
        data, _ = await wire.request(f"{API}.{subject}", body, timeout_seconds=bound)
    except NotSentError:
        raise unavailable("not connected to the broker") from None
    except UnansweredError as error:
        raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, f"the broker does not answer: {error}") from None
    except NoRespondersError:
        raise unavailable("JetStream is not available at the moment") from None
    answer: dict[str, Any] = json.loads(data)
    if "error" in answer:
        raise _error(answer["error"])
    return answer


async def stored_message(wire: Wire, stream: str, query: Mapping[str, object]) -> StoredMessage | None:
    """One message of a stream through its leader: by `seq`, `last_by_subj` or `seq` and `next_by_subj`."""
    try:
        answer = await call(wire, f"STREAM.MSG.GET.{stream}", query)
    except ApiError as error:
        if is_missing(error):
            return None
        raise error.typed() from None
    raw = answer["message"]
    return StoredMessage(
        subject=str(raw["subject"]),
        sequence=int(raw["seq"]),
        data=base64.b64decode(raw.get("data") or ""),
        header_block=base64.b64decode(raw.get("hdrs") or ""),
    )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it lies in a stream."""

    subject: str
    sequence: int
    data: bytes
    header_block: bytes

    def message(self) -> Message:
        """As readers get it."""
        return Message(self.subject, self.data, bus_headers.callers_own(self.header_block), self.sequence)


def _error(error: Mapping[str, Any]) -> ApiError:
    return ApiError(int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description", "")))
