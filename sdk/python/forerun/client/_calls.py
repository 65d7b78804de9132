"""The calls that a session waits for, from ask to answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from forerun.client._channel import MESSAGE_BYTES
from forerun.client._errors import InvalidRequest
from forerun.client._json import encode_arguments
from forerun.client._results import Call, Failure, Result, Status, failure_of, served_of, status_of
from forerun.v1 import common_pb2, event_pb2, session_pb2

# Bounds of the platform (forerun.core.limits, compared by a contract test): what is above is refused before it is sent.
CALLS_PER_MESSAGE: Final = 1_000
DEADLINE_MAX_SECONDS: Final = 3_600.0
# The platform's own bound of one result (forerun.core.limits, compared by a contract test).
RESULT_BYTES: Final = 64 * 1024 * 1024
# A damaged answer is asked for again, once: the platform answers from its journal and runs nothing.
_DAMAGED_MAX: Final = 2


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call without an answer.

    Attributes:
        call: What was asked.
        turn: Number of its message.
        message: Its form on the wire.
        answer: Gets the result.
        chunks: The parts of a large answer that have come.
        written: It was handed to a connection, so it may have taken effect.
        on_its_way: It was handed to the connection that is open now.
        taken_back: The platform is to stop it.
        direct: It runs around the platform now.
        reads: Of a call that runs around the platform: it changes nothing.
        damaged: Answers that did not match their digest.
    """

    call: Call
    turn: int
    message: event_pb2.AskedCall
    answer: asyncio.Future[Result]
    chunks: bytearray = field(default_factory=bytearray)
    written: bool = False
    on_its_way: bool = False
    taken_back: bool = False
    direct: bool = False
    reads: bool = False
    damaged: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Turn and index."""
        return self.turn, self.message.index

    def end(self, status: Status, failure: Failure) -> None:
        """Ends it without an answer of the platform."""
        if not self.answer.done():
            self.answer.set_result(
                Result(call=self.call, turn=self.turn, index=self.message.index, status=status, failure=failure)
            )

    def lose(self, failure: Failure) -> None:
        """Ends it because nobody will answer: unknown where it may have started, else certainly without effect."""
        if self.direct:
            self.end(Status.TIMEOUT if self.reads else Status.OUTCOME_UNKNOWN, failure)
        else:
            self.end(Status.OUTCOME_UNKNOWN if self.written else Status.UNAVAILABLE, failure)

    def withdraw(self, failure: Failure) -> None:
        """Ends it because nobody wants it any more: what may have taken effect is unknown."""
        may_have_written = not self.reads if self.direct else self.written
        self.end(Status.OUTCOME_UNKNOWN if may_have_written else Status.CANCELLED, failure)


@dataclass(slots=True, eq=False)
class Batch:
    """The calls of one message.

    Attributes:
        turn: Number of the message.
        calls: In order.
        timeout_seconds: As asked; None leaves it to the tools' contracts.
        asked_at: Loop time of the ask.
        timer: Ends the wait.
        progressed_at: Loop time of the ask or of the last answer. Calls of a long message wait for each other, so
            only silence says that no answer will come.
        direct: Its calls run around the platform, one after the other; nothing of it is sent meanwhile.
        unanswered: How many calls are open.
    """

    turn: int
    calls: Sequence[OpenCall]
    timeout_seconds: float | None
    asked_at: float
    timer: asyncio.TimerHandle | None = None
    direct: bool = False
    progressed_at: float = field(init=False)
    unanswered: int = field(init=False)

    def __post_init__(self) -> None:
        """Counts the calls."""
        self.progressed_at = self.asked_at
        self.unanswered = len(self.calls)

    @property
    def open(self) -> list[OpenCall]:
        """Calls that are not answered yet."""
        return [one for one in self.calls if not one.answer.done()]

    def render(self, now: float) -> session_pb2.CallBatch | None:
        """What to send: the open calls with what remains of their time; None where there is nothing."""
        calls = self.open
        if not calls or self.direct:
            return None
        message = session_pb2.CallBatch(turn=self.turn, calls=[one.message for one in calls])
        if self.timeout_seconds is not None:
            # Sums of floats may come out a hair above what was asked for, which may be the most that is allowed.
            left = self.asked_at + self.timeout_seconds - now
            message.timeout_seconds = max(0.001, min(self.timeout_seconds, left))
        return message


class OpenCalls:
    """All calls that a session waits for.

    Args:
        ask_again: Called with a batch that has to be sent once more because an answer came damaged.
        takes: Called with an answer; True where it is none, because the call goes another way.
    """

    def __init__(self, ask_again: Callable[[Batch], None], takes: Callable[[OpenCall, Result, Batch], bool]) -> None:
        self._batches: dict[int, Batch] = {}
        self._calls: dict[tuple[int, int], OpenCall] = {}
        self._ask_again = ask_again
        self._takes = takes

    def add(self, batch: Batch) -> None:
        """Begins to wait for a batch."""
        self._batches[batch.turn] = batch
        for one in batch.calls:
            self._calls[one.key] = one
            one.answer.add_done_callback(partial(self._done, one.key, batch))

    def __iter__(self) -> Iterator[Batch]:
        return iter([self._batches[turn] for turn in sorted(self._batches)])

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, call: Call) -> OpenCall | None:
        """The open call of what a user asked."""
        return next((one for one in self._calls.values() if one.call is call), None)

    def take_chunk(self, message: session_pb2.ResultChunk) -> None:
        """A part of an answer; parts of calls that nobody waits for are dropped."""
        one = self._calls.get((message.call.turn, message.call.index))
        if one is None or one.answer.done():
            return
        one.chunks += message.data
        if len(one.chunks) > RESULT_BYTES:
            one.lose(
                Failure(
                    "RESULT_TOO_LARGE",
                    f"the result is larger than RESULT_BYTES ({RESULT_BYTES} bytes); cap the tool's output in its "
                    "contract (output_cap_bytes)",
                    {"limit_bytes": str(RESULT_BYTES)},
                )
            )

    def take_result(self, message: session_pb2.CallResult) -> None:
        """An answer. The first one counts: later ones of the same call find nobody who waits."""
        one = self._calls.get((message.call.turn, message.call.index))
        if one is None or one.answer.done():
            return
        content = bytes(one.chunks) if one.chunks else message.observation.content
        one.chunks = bytearray()
        if _damaged(content, message.observation):
            self._refuse_damaged(one)
            return
        result = Result(
            call=one.call,
            turn=one.turn,
            index=one.message.index,
            status=status_of(message.status),
            content=content,
            media_type=message.observation.media_type,
            tool_error=message.observation.tool_error,
            failure=failure_of(message.failure) if message.HasField("failure") else None,
            served=served_of(message.served),
            execution_seconds=message.execution_seconds,
            waited_seconds=message.waited_seconds,
        )
        if not self._takes(one, result, self._batches[one.turn]):
            one.answer.set_result(result)

    def reject(self, turn: int, failure: Failure) -> None:
        """The platform did not take the batch of a turn: nothing of it ran, and where it says when, it may be asked."""
        batch = self._batches.get(turn)
        status = Status.REJECTED if failure.retry_after_seconds is None else Status.UNAVAILABLE
        for one in batch.open if batch is not None else ():
            one.end(status, failure)

    def disconnected(self) -> None:
        """A connection broke: half an answer is none."""
        for one in self._calls.values():
            one.chunks = bytearray()
            one.on_its_way = False

    @property
    def on_its_way(self) -> bool:
        """The connection that is open now owes an answer."""
        return any(one.on_its_way and not one.answer.done() for one in self._calls.values())

    def lose_all(self, failure: Failure) -> None:
        """Nobody will answer any more."""
        for one in list(self._calls.values()):
            if not one.direct:
                one.lose(failure)

    def cancel_all(self, failure: Failure) -> None:
        """The session ends: what was not sent is taken back, the rest may have taken effect."""
        for one in list(self._calls.values()):
            one.withdraw(failure)

    def _refuse_damaged(self, one: OpenCall) -> None:
        one.damaged += 1
        if one.damaged < _DAMAGED_MAX:
            self._ask_again(self._batches[one.turn])
            return
        one.end(
            Status.OUTCOME_UNKNOWN,
            Failure(
                "RESULT_CORRUPT",
                "the call was answered, and what arrived does not match the answer's digest, twice; look at the "
                "tool before asking again",
            ),
        )

    def _done(self, key: tuple[int, int], batch: Batch, _: object) -> None:
        self._calls.pop(key, None)
        batch.unanswered -= 1
        batch.progressed_at = asyncio.get_running_loop().time()
        if not batch.unanswered:
            if self._batches.get(batch.turn) is batch:  # else the next task of a plan is asked for already
                del self._batches[batch.turn]
            if batch.timer is not None:
                batch.timer.cancel()


def _damaged(content: bytes, observation: common_pb2.Observation) -> bool:
    if len(content) != observation.size_bytes and (observation.digest or observation.size_bytes):
        return True
    return bool(observation.digest) and observation.digest != "sha256:" + hashlib.sha256(content).hexdigest()


def asked_calls(calls: Sequence[Call], timeout_seconds: float | None) -> list[event_pb2.AskedCall]:
    """The calls of one message on the wire.

    Raises:
        InvalidRequest: arguments without an exact JSON form, too many calls, or a time that no call may have.
    """
    if len(calls) > CALLS_PER_MESSAGE:
        raise too_much("calls", len(calls), CALLS_PER_MESSAGE)
    if timeout_seconds is not None and not 0 < timeout_seconds <= DEADLINE_MAX_SECONDS:
        raise InvalidRequest(
            "ARGUMENT_INVALID",
            f"timeout_seconds must be above 0 and at most {DEADLINE_MAX_SECONDS:g} (DEADLINE_MAX_SECONDS)",
            metadata={"argument": "timeout_seconds"},
        )
    if len({id(call) for call in calls}) != len(calls):
        raise InvalidRequest("ARGUMENT_INVALID", "the same Call object stands in the message twice; make two")
    messages = [
        event_pb2.AskedCall(
            index=index,
            action=common_pb2.Action(tool=call.name, arguments=encode_arguments(call.arguments)),
            provider_call_id=call.provider_call_id,
        )
        for index, call in enumerate(calls)
    ]
    size_bytes = session_pb2.CallBatch(calls=messages).ByteSize()
    if size_bytes > MESSAGE_BYTES - 1024:  # room for the fields around it
        raise too_much("bytes", size_bytes, MESSAGE_BYTES - 1024)
    return messages


def too_much(unit: str, found: int, limit: int) -> InvalidRequest:
    """What is wrong with a message that is too large."""
    bound = "CALLS_PER_MESSAGE" if unit == "calls" else "MESSAGE_BYTES"
    return InvalidRequest(
        "MESSAGE_TOO_LARGE",
        f"one message may have {limit} {unit} ({bound}), this one has {found}; send less, or in two messages",
        metadata={"limit": bound, "found": str(found), "most": str(limit), "unit": unit},
    )
