"""The client's side of one session: its stream, who waits for single answers, and the tools that live in the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from forerun.core import limits
from forerun.core.session import CallAnswer
from forerun.orchestrator.client_tools import ClientTools
from forerun.orchestrator.records import call_result
from forerun.v1 import common_pb2, session_pb2


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
        self._out: asyncio.Queue[session_pb2.ConnectResponse | None] | None = None
        self._waiters: dict[tuple[int, int], list[asyncio.Future[session_pb2.CallResult]]] = {}

    @property
    def attached(self) -> bool:
        """A stream is connected."""
        return self._out is not None

    def attach(self) -> asyncio.Queue[session_pb2.ConnectResponse | None]:
        """Answers go to this queue from now on; an older one ends. None in it ends the stream."""
        self.detach(self._out)
        # Bounded by what a client may have open: calls of a message, and chunks that the journal holds anyway.
        self._out = asyncio.Queue()
        self.streamed = True
        self._touched()
        return self._out

    def detach(self, queue: asyncio.Queue[session_pb2.ConnectResponse | None] | None) -> None:
        """The stream of this queue is gone."""
        if queue is not None and self._out is queue:
            queue.put_nowait(None)
            self._out = None
            self.client_tools.interrupt()
            self._touched()

    def disconnect(self) -> None:
        """Ends the stream, if there is one."""
        self.detach(self._out)

    def send(self, message: session_pb2.ConnectResponse) -> bool:
        """Sends a message over the stream; False where there is none."""
        if self._out is None:
            return False
        self._out.put_nowait(message)
        return True

    def go_away(self, seconds: float) -> None:
        """Tells the client that this replica ends soon: it finishes what is open and goes on elsewhere."""
        away = session_pb2.GoAway(seconds=seconds, reason="the replica is stopping")
        self.send(session_pb2.ConnectResponse(go_away=away))

    def wait_for(self, call: tuple[int, int]) -> asyncio.Future[session_pb2.CallResult]:
        """The answer of a call, for unary clients."""
        future: asyncio.Future[session_pb2.CallResult] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(call, []).append(future)
        return future

    def answer(self, answer: CallAnswer, *, conflict: bool) -> None:
        """Gives an answer to whoever waits for it.

        Args:
            answer: The answer.
            conflict: Only who asked last used the key for something else; the others still wait for the call that runs.
        """
        content = answer.result.content if answer.result is not None else b""
        inline = len(content) <= limits.CHUNK_BYTES
        waiting = self._waiters.pop(answer.call, [])
        if conflict and waiting:
            waiting, self._waiters[answer.call] = waiting[-1:], waiting[:-1]
        for future in waiting:
            if not future.done():
                future.set_result(call_result(self._session, answer, content=True))
        if not inline:
            key = common_pb2.CallKey(session=self._session, turn=answer.call[0], index=answer.call[1])
            for start in range(0, len(content), limits.CHUNK_BYTES):
                chunk = session_pb2.ResultChunk(call=key, data=content[start : start + limits.CHUNK_BYTES])
                self.send(session_pb2.ConnectResponse(chunk=chunk))
        self.send(session_pb2.ConnectResponse(result=call_result(self._session, answer, content=inline)))

    def close(self) -> None:
        """The session is over: nobody is answered any more."""
        for futures in self._waiters.values():
            for future in futures:
                future.cancel()
        self._waiters.clear()
