"""Tools that live in the client: called back over the session's stream."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

from forerun.core.canonical import CanonicalError, parse_strict
from forerun.core.outcomes import CallStatus
from forerun.core.session import Execute, ExecutionResult, Failure
from forerun.orchestrator.records import status_of
from forerun.v1 import common_pb2, session_pb2

_GONE = Failure("CALL_INTERRUPTED", "the client that holds the tool went away")
_TIMED_OUT = Failure("TOOL_TIMEOUT", "the client's tool did not answer in time")


class ClientTools:
    """Calls the functions of one client.

    Args:
        send: Sends a message over the stream; False when there is none.
    """

    def __init__(self, send: Callable[[session_pb2.ConnectResponse], bool]) -> None:
        self._send = send
        self._open: dict[str, asyncio.Future[session_pb2.ClientToolResult | None]] = {}

    async def call(self, effect: Execute) -> ExecutionResult:
        """Calls a function and waits for its answer. Cancellation tells the client to stop it."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        future: asyncio.Future[session_pb2.ClientToolResult | None] = loop.create_future()
        self._open[effect.execution] = future
        invocation = session_pb2.ClientToolInvocation(
            invocation=effect.execution,
            action=common_pb2.Action(tool=effect.prepared.tool, arguments=effect.prepared.arguments),
            timeout_seconds=effect.timeout_seconds,
        )
        try:
            if not self._send(session_pb2.ConnectResponse(invocation=invocation)):
                return ExecutionResult(status=CallStatus.UNAVAILABLE, failure=_GONE, not_started=True)
            try:
                async with asyncio.timeout(effect.timeout_seconds):
                    answer = await future
            except TimeoutError:
                self._stop(effect.execution)
                return _cut_off(CallStatus.TIMEOUT, _TIMED_OUT, loop.time() - started_at)
            except asyncio.CancelledError:
                self._stop(effect.execution)
                raise
        finally:
            self._open.pop(effect.execution, None)
        if answer is None:
            return _cut_off(CallStatus.UNAVAILABLE, _GONE, loop.time() - started_at)
        return _result(answer, loop.time() - started_at)

    def answered(self, message: session_pb2.ClientToolResult) -> None:
        """The client's answer; one that nobody waits for is ignored."""
        future = self._open.get(message.invocation)
        if future is not None and not future.done():
            future.set_result(message)

    def interrupt(self) -> None:
        """The client is gone: open calls end now."""
        for future in self._open.values():
            if not future.done():
                future.set_result(None)

    def _stop(self, execution: str) -> None:
        self._send(session_pb2.ConnectResponse(invocation_cancel=session_pb2.ClientToolCancel(invocation=execution)))


def _cut_off(status: CallStatus, failure: Failure, seconds: float) -> ExecutionResult:
    """The end of a call that its function may not know of."""
    return ExecutionResult(status=status, failure=failure, seconds=seconds, may_continue=True)


def _result(message: session_pb2.ClientToolResult, seconds: float) -> ExecutionResult:
    content = message.observation.content
    status = status_of(message.status)
    return ExecutionResult(
        status=status,
        content=content,
        media_type=_media_type(content, message.observation.media_type),
        tool_error=message.observation.tool_error,
        digest="sha256:" + hashlib.sha256(content).hexdigest(),
        failure=None if status is CallStatus.OK else _GONE,
        seconds=seconds,
        may_continue=status not in (CallStatus.OK, CallStatus.REJECTED),
    )


def _media_type(content: bytes, said: str) -> str:
    """What the client says of its answer; what it calls JSON and is none is passed on as plain text."""
    if "json" in said:
        try:
            parse_strict(content)
        except CanonicalError:
            return "text/plain; charset=utf-8"
    return said
