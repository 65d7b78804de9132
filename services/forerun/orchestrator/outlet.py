"""The client's side of one session: its stream, who waits for single answers, and the tools that live in the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from forerun.core import limits
from forerun.core.session import CallAnswer
from forerun.orchestrator.client_tools import ClientTools
from forerun.orchestrator.records import call_result
from forerun.orchestrator.stream import Stream
from forerun.v1 import common_pb2, session_pb2

LINGER_SECONDS: Final = 0.002
"""How long what is published about a call waits for the call's answer to leave first."""
_LOG: Final = logging.getLogger(__name__)


class Outlet:
    """Where what a session says goes to.

    Args:
        session: The session's id.
        touched: Called when a stream comes or goes.
    """

    def __init__(self, session: str, touched: Callable[[], None]) -> None:
        self.client_tools = ClientTools(self.send)
        self.streamed = False
        self._session = session
        self._touched = touched
        self._stream: Stream[session_pb2.ConnectResponse] | None = None
        self._alone: set[tuple[int, int]] = set()
        self._waiters: dict[tuple[int, int], list[asyncio.Future[session_pb2.CallResult]]] = {}

    @property
    def attached(self) -> bool:
        """A stream is connected."""
        return self._stream is not None

    def attach(self) -> Stream[session_pb2.ConnectResponse]:
        """Answers go to this stream from now on; an older one ends."""
        self.detach(self._stream)
        self._stream = Stream()
        self.streamed = True
        self._touched()
        return self._stream

    def detach(self, stream: Stream[session_pb2.ConnectResponse] | None) -> None:
        """This stream is gone, or is to end."""
        if stream is None or self._stream is not stream:
            return
        stream.end()
        self._stream = None
        self.client_tools.interrupt()
        self._touched()

    def disconnect(self) -> None:
        """Ends the stream, if there is one."""
        self.detach(self._stream)

    def send(self, message: session_pb2.ConnectResponse) -> bool:
        """Sends a message over the stream; False where there is none."""
        return self._put(iter((message,)), message.ByteSize())

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Calls back, once, when nothing waits for the client any more: perhaps at once, at the latest in a moment."""
        if self._stream is None:
            callback()
        else:
            self._stream.when_sent(callback, LINGER_SECONDS)

    def _put(self, messages: Iterator[session_pb2.ConnectResponse], size_bytes: int) -> bool:
        stream = self._stream
        if stream is None:
            return False
        if not stream.put(messages, size_bytes):
            _LOG.warning(
                "a client reads too slowly and was disconnected", extra={"fields": {"forerun.session": self._session}}
            )
            self.detach(stream)
            return False
        return True

    def go_away(self, seconds: float) -> None:
        """Tells the client that this replica ends soon: it finishes what is open and goes on elsewhere."""
        away = session_pb2.GoAway(seconds=seconds, reason="the replica is stopping")
        self.send(session_pb2.ConnectResponse(go_away=away))

    def wait_for(self, call: tuple[int, int], *, alone: bool = False) -> asyncio.Future[session_pb2.CallResult]:
        """The answer of a call, for who does not wait at the session's stream.

        Args:
            call: The call.
            alone: Nobody waits for it at the stream, which is spared the answer.
        """
        future: asyncio.Future[session_pb2.CallResult] = asyncio.get_running_loop().create_future()
        if alone:
            self._alone.add(call)
        self._waiters.setdefault(call, []).append(future)
        return future

    def forget(
        self, calls: Sequence[tuple[int, int]], waiting: Sequence[asyncio.Future[session_pb2.CallResult]]
    ) -> None:
        """A unary client has its answers, or waits no more."""
        self._alone.difference_update(calls)
        for call, future in zip(calls, waiting, strict=True):
            others = [one for one in self._waiters.pop(call, ()) if one is not future]
            if others:
                self._waiters[call] = others

    def answer(self, answer: CallAnswer, *, conflict: bool) -> None:
        """Gives an answer to whoever waits for it.

        Args:
            answer: The answer.
            conflict: Only who asked last used the key for something else; the others still wait for the call that runs.
        """
        waiting = self._waiters.pop(answer.call, [])
        if conflict and waiting:
            waiting, self._waiters[answer.call] = waiting[-1:], waiting[:-1]
        for future in waiting:
            if not future.done():
                future.set_result(call_result(self._session, answer, content=True))
        if answer.call in self._alone:
            self._alone.discard(answer.call)
            return
        size_bytes = len(answer.result.content) if answer.result is not None else 0
        if size_bytes <= limits.CHUNK_BYTES:
            self.send(session_pb2.ConnectResponse(result=call_result(self._session, answer, content=True)))
        else:
            self._put(_in_chunks(self._session, answer), size_bytes)

    def close(self) -> None:
        """The session is over: nobody is answered any more."""
        for futures in self._waiters.values():
            for future in futures:
                future.cancel()
        self._waiters.clear()


def _in_chunks(session: str, answer: CallAnswer) -> Iterator[session_pb2.ConnectResponse]:
    key = common_pb2.CallKey(session=session, turn=answer.call[0], index=answer.call[1])
    content = answer.result.content if answer.result is not None else b""
    for start in range(0, len(content), limits.CHUNK_BYTES):
        chunk = session_pb2.ResultChunk(call=key, data=content[start : start + limits.CHUNK_BYTES])
        yield session_pb2.ConnectResponse(chunk=chunk)
    yield session_pb2.ConnectResponse(result=call_result(session, answer, content=False))
