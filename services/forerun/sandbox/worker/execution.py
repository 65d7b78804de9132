"""One execution: what was asked, what its caller hears, and its state in between."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace

from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.port import Ended, Invocation, Result, ToolFault, cut
from forerun.sandbox.worker.slots import Priority, Seat, Slots


@dataclass(frozen=True, slots=True)
class Request:
    """An execution to run.

    Attributes:
        execution: Its id, made by the caller.
        invocation: The call.
        priority: Its class.
        tool_concurrency: Calls of this tool at once; None has no limit of its own.
        merge_on_success: Merge the fork once the tool has answered.
    """

    execution: str
    invocation: Invocation
    priority: Priority
    tool_concurrency: int | None = None
    merge_on_success: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """The execution has a seat."""

    tool_version: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next bytes of the answer."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an execution.

    Attributes:
        ended: How.
        result: The answer, where there is one; its content is empty where it came in chunks.
        digest: Of the whole answer.
        size_bytes: Of the whole answer.
        fault: Why there is none.
        seconds: Time in the seat.
        queued_seconds: Time before it.
        preempted: It was sent away for authoritative work.
        promoted: It was promoted while it ran.
        may_continue: The tool was reached, and what it was told to do may still take effect.
    """

    ended: Ended
    result: Result | None
    digest: str
    size_bytes: int
    fault: ToolFault | None
    seconds: float
    queued_seconds: float
    preempted: bool
    promoted: bool
    may_continue: bool


Step = Started | Chunk | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How answers travel.

    Attributes:
        inline_bytes: Longest answer that travels in `Finished`.
        chunk_bytes: Longest chunk.
    """

    inline_bytes: int
    chunk_bytes: int


class Execution:
    """One execution's state."""

    def __init__(self, request: Request, now: float, sizes: Sizes) -> None:
        self.request = request
        self.priority = request.priority
        self.seat: Seat | None = None
        self.task: asyncio.Task[None] | None = None
        self.bound: asyncio.Timeout | None = None
        self.steps: asyncio.Queue[Step] = asyncio.Queue()
        self.asked_at = now
        self.started_at = now
        self.reached = False
        # Another execution is, or was, at the same call: how this one ends says nothing of that.
        self.elsewhere = False
        self.promoted = False
        self.decided = False
        self.begun = False
        self.withdrawn = False
        self._preempted = False
        self._sizes = sizes
        self._received = bytearray()
        self._sent_bytes = 0

    def preempt(self) -> None:
        """The seat was given to authoritative work."""
        self._preempted = True
        self.cancel()

    def cancel(self) -> None:
        """Stops it; `Finished` follows."""
        if not self.begun:
            # A task that is cancelled before its first step would never run, and never give its seat back.
            self.withdrawn = True
        elif self.task is not None and not self.decided and not self.task.cancelling():
            # Once: a second one would cut short how the tool is ended.
            self.task.cancel()

    def promote(self, slots: Slots, timeout_seconds: float) -> bool:
        """Makes it authoritative; False where it is being stopped."""
        if (
            self.task is None
            or self.task.done()
            or self.task.cancelling()
            or self.bound is None
            or self.bound.expired()
        ):
            return False
        if self.priority is Priority.AUTHORITATIVE:
            return True
        assert self.seat is not None
        if not slots.promote(self.seat):
            return False
        self.priority = Priority.AUTHORITATIVE
        self.promoted = True
        self.request.invocation.demand.asked_for = True
        self.bound.reschedule(asyncio.get_running_loop().time() + timeout_seconds)
        self._pass_on()
        return True

    def take(self, data: bytes) -> None:
        """The next bytes of the final answer."""
        if self.request.invocation.output_cap_bytes is None:
            self._received += data
            self._pass_on()

    def _pass_on(self) -> None:
        """Sends what has come in, once it is too long to travel inside the last message. Never ahead of time."""
        if self.priority is Priority.AUTHORITATIVE and len(self._received) > self._sizes.inline_bytes:
            self._send(self._received)

    def _send(self, whole: bytes | bytearray) -> None:
        while self._sent_bytes < len(whole):
            chunk = bytes(whole[self._sent_bytes : self._sent_bytes + self._sizes.chunk_bytes])
            self._sent_bytes += len(chunk)
            self.steps.put_nowait(Chunk(chunk))

    def why_cancelled(self) -> ToolFault:
        """The fault of a stopped execution."""
        if self._preempted:
            return ToolFault(
                Ended.CANCELLED, ErrorReason.PREEMPTED, "stopped to make room for authoritative work",
                not_started=not self.reached,
            )  # fmt: skip
        return ToolFault(
            Ended.CANCELLED, ErrorReason.CALL_CANCELLED, "the call was taken back", not_started=not self.reached
        )

    def finish(self, result: Result | None, fault: ToolFault | None, now: float, *, may_continue: bool) -> Finished:
        """The last message; whatever of the answer was not sent yet goes before it or inside it."""
        digest, size = "", 0
        if result is not None:
            cap = self.request.invocation.output_cap_bytes
            if cap is not None and not result.capped and len(result.content) > cap:
                result = replace(result, content=cut(result.content, cap), media_type="text/plain; charset=utf-8")
            digest, size = f"sha256:{hashlib.sha256(result.content).hexdigest()}", len(result.content)
            if self._sent_bytes or size > self._sizes.inline_bytes:
                self._send(result.content)
                result = replace(result, content=b"")
        seated = self.seat is not None
        return Finished(
            ended=Ended.OK if fault is None else fault.ended,
            result=result,
            digest=digest,
            size_bytes=size,
            fault=fault,
            seconds=now - self.started_at if seated else 0.0,
            queued_seconds=(self.started_at if seated else now) - self.asked_at,
            preempted=self._preempted and fault is not None,
            promoted=self.promoted,
            may_continue=may_continue,
        )
