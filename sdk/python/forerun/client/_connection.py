"""The way of one session to the platform: a stream that is opened again when it breaks.

One task owns the stream. Messages wait in two lanes until it is there: what belongs to the running connection (answers
of client tools, cancellations) goes first, and what belongs to the session (events, batches) waits while the platform
says goodbye. After a break the open batches are sent again under their keys; the platform runs none of them twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from forerun.client._calls import Batch, OpenCall, OpenCalls
from forerun.client._errors import (
    ForerunClientError,
    NotConfigured,
    PlatformUnavailable,
    SessionClosed,
    StreamFailure,
    from_rpc_error,
)
from forerun.client._ids import Ids
from forerun.client._plan import Progress, RunningPlan
from forerun.client._ports import Listener
from forerun.client._results import Failure, Status, failure_of
from forerun.v1 import common_pb2, plan_pb2, session_pb2, session_pb2_grpc

_LOG: Final = logging.getLogger("forerun.client")

_WELCOME_SECONDS: Final = 15.0
_BACKOFF_INITIAL_SECONDS: Final = 0.05
_BACKOFF_MAX_SECONDS: Final = 2.0
# A connection that lived for so long was a good one: the next break starts with a short pause again.
_STABLE_SECONDS: Final = 5.0
# Without anything to send, an unreachable platform is given up for so long, until there is something: by then it has
# ended the session itself.
_IDLE_RETRY_SECONDS: Final = 60.0
# Before the announced end of a connection, for what is on its way.
_GOODBYE_MARGIN_SECONDS: Final = 0.5
# The token is not what it was when the session was opened, and the connection ends.
_REFUSALS: Final = frozenset({"CREDENTIAL_REFUSED", "CALLER_NOT_ALLOWED"})

Outgoing = session_pb2.ConnectRequest | Batch


def _channel_closed() -> StreamFailure:
    return StreamFailure(SessionClosed("SESSION_ENDED", "the client was closed"), transient=False)


class Connection:
    """Keeps one session connected.

    Args:
        stub: Finds the service; raises `NotConfigured` while nothing says where it is.
        hello: Opens the session; sent with `resume` set after the first time.
        listener: The session.
        metadata: Goes with every stream.
        address: For messages.
        ids: Draws jitter.
    """

    def __init__(
        self,
        stub: Callable[[], session_pb2_grpc.SessionServiceStub],
        hello: session_pb2.Hello,
        listener: Listener,
        *,
        metadata: Callable[[], tuple[tuple[str, str], ...]],
        address: Callable[[], str],
        ids: Ids,
    ) -> None:
        self._stub = stub
        self._hello = hello
        self._listener = listener
        self._metadata = metadata
        self._address = address
        self._ids = ids
        self.calls = OpenCalls(self.ask_again, listener.takes)
        self._urgent: deque[session_pb2.ConnectRequest] = deque()
        self._ordinary: deque[Outgoing] = deque()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._goodbye: asyncio.TimerHandle | None = None
        self._leaving = self._hurried = False
        self._closing = False
        self._tried = False
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._opened.add_done_callback(_retrieve)  # a session that began without the platform does not wait for it
        self._ended: asyncio.Future[session_pb2.Totals | None] = loop.create_future()
        self._last_error: ForerunClientError | None = None
        self._closed: ForerunClientError | None = None
        self._alone = False
        self._resume = hello.resume
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ used by the session

    async def open(self, timeout_seconds: float, *, stay: bool) -> bool:
        """Returns when the session is open.

        Args:
            timeout_seconds: How long to wait for that.
            stay: Go on trying when the time is over, and return False, instead of giving up.

        Raises:
            ForerunClientError: it cannot be opened, or not in time.
        """
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"forerun {self._hello.session}")
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(self._opened)
            return True
        except TimeoutError:
            if stay:
                return False
            await self._stop()
            raise self._last_error or PlatformUnavailable(
                "PEER_UNAVAILABLE",
                f"the platform at {self._address()} did not open the session within {timeout_seconds:g} s",
                metadata={"address": self._address()},
            ) from None
        except BaseException:
            await self._stop()
            raise

    def check(self) -> None:
        """Raises why the session takes nothing any more, if so."""
        closed = self._closed
        if closed is not None and not self._alone:
            raise type(closed)(
                closed.reason,
                closed.message,
                metadata=closed.metadata,
                retry_after_seconds=closed.retry_after_seconds,
            ) from closed

    def plan(self, turn: int, options: plan_pb2.PlanOptions, progress: Progress | None) -> RunningPlan:
        """A plan of this session, over a stream of its own."""
        hello = session_pb2.Hello()
        hello.CopyFrom(self._hello)
        hello.resume = True
        start = session_pb2.PlanStart(hello=hello, turn=turn, options=options)
        return RunningPlan(self._stub, start, metadata=self._metadata, address=self._address, progress=progress)

    def ask(self, batch: Batch) -> None:
        """Sends the calls of a message."""
        self.calls.add(batch)
        self.ask_again(batch)

    def send(self, message: session_pb2.ConnectRequest) -> None:
        """Sends an event when its turn comes."""
        self._ordinary.append(message)
        self._wake.set()

    def send_now(self, message: session_pb2.ConnectRequest) -> None:
        """Sends what only means something to the running connection."""
        self._urgent.append(message)
        self._wake.set()

    def take_back(self, one: OpenCall) -> None:
        """Stops a call. One that was never sent ends at once, any other when the platform says how."""
        if one.answer.done():
            return
        one.taken_back = True
        if one.direct:
            one.withdraw(Failure("CALL_CANCELLED", "the call was taken back while it ran around the platform"))
        elif one.written:
            self.send_now(self._cancellation(one))
        else:
            one.end(Status.CANCELLED, Failure("CALL_CANCELLED", "the call was taken back before it was sent"))

    def give_up(self, batch: Batch, failure: Failure) -> None:
        """Nobody waits for the open calls of a batch any more."""
        for one in batch.open:
            if one.on_its_way:
                self.send_now(self._cancellation(one))
            one.lose(failure)

    def _cancellation(self, one: OpenCall) -> session_pb2.ConnectRequest:
        key = common_pb2.CallKey(session=self._hello.session, turn=one.turn, index=one.message.index)
        return session_pb2.ConnectRequest(cancel=key)

    async def close(self, reason: str, timeout_seconds: float) -> session_pb2.Totals | None:
        """Ends the session; its totals, or None where the platform could not be told in time."""
        self._closing = True
        self.calls.cancel_all(Failure("SESSION_ENDED", "the session was closed while the call was open"))
        totals: session_pb2.Totals | None = None
        if self._closed is None:
            end = session_pb2.EndSessionRequest(session=self._hello.session, reason=reason)
            self.send(session_pb2.ConnectRequest(end=end))
            try:
                async with asyncio.timeout(timeout_seconds):
                    totals = await asyncio.shield(self._ended)
            except TimeoutError:
                if timeout_seconds:
                    _LOG.warning("the platform was not told in time that session %s ends", self._hello.session)
        self._closed = self._closed or SessionClosed("SESSION_ENDED", "the session was closed")
        await self._stop()
        return totals

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._opened.cancel()
        self._ended.cancel()

    # ------------------------------------------------------------ the life of the stream

    async def _run(self) -> None:
        try:
            await self._keep_connected()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # A defect of the client must not leave callers waiting.
            _LOG.exception("the connection of session %s failed", self._hello.session)
            self._finish(SessionClosed("INTERNAL", f"the client failed: {type(error).__name__}"))

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        pause = _BACKOFF_INITIAL_SECONDS
        broken_at = loop.time()
        while not self._ended.done():
            started_at = loop.time()
            failure: StreamFailure | None = None
            try:
                await self._connect()
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error, self._address())
            except TimeoutError:
                failure = StreamFailure(
                    PlatformUnavailable("DEADLINE_EXCEEDED", f"{self._address()} did not welcome the session in time"),
                    transient=True,
                )
            except NotConfigured as error:
                failure = StreamFailure(error, transient=True)
            except StreamFailure as error:
                failure = error
            finally:
                self._detach()
            if self._ended.done():
                if not self._closing:
                    self._finish(SessionClosed("SESSION_ENDED", "the platform ended the session"))
                return
            if failure is not None and not self._may_retry(failure):
                self._finish(failure.error)
                return
            self._last_error = failure.error if failure is not None else None
            hurried, self._hurried = self._hurried, False
            if hurried and failure is None:
                continue
            if loop.time() - started_at >= _STABLE_SECONDS:
                pause, broken_at = _BACKOFF_INITIAL_SECONDS, loop.time()
            await self._pause(pause, failure, idle=loop.time() - broken_at > _IDLE_RETRY_SECONDS)
            pause = min(pause * 2, _BACKOFF_MAX_SECONDS)

    def _may_retry(self, failure: StreamFailure) -> bool:
        tried, self._tried = self._tried, True
        if failure.error.reason == "SESSION_EXISTS" and not self._resume and tried:
            # An earlier try opened it and its welcome was lost.
            self._resume = True
            return True
        return failure.transient

    async def _pause(self, seconds: float, failure: StreamFailure | None, *, idle: bool) -> None:
        asked = failure.error.retry_after_seconds if failure is not None else None
        await asyncio.sleep(max(seconds * (0.5 + self._ids.fraction() / 2), asked or 0.0))
        if idle and self._opened.done():
            while not self._ordinary and not len(self.calls):
                self._wake.clear()
                await self._wake.wait()

    def _detach(self) -> None:
        """After a break: open batches are sent again, before everything that was not sent yet."""
        self._leaving = False
        self._drained.clear()
        if self._goodbye is not None:
            self._goodbye.cancel()
        self._urgent.clear()
        self.calls.disconnected()
        self._listener.disconnected()
        waiting = {id(one) for one in self._ordinary}
        again = [batch for batch in self.calls if id(batch) not in waiting]
        self._ordinary.extendleft(reversed(again))

    @property
    def batches(self) -> list[Batch]:
        """Messages with calls that are not answered."""
        return list(self.calls)

    def ask_again(self, batch: Batch) -> None:
        """Sends what is open of a batch when its turn comes."""
        if not self._alone:
            self._ordinary.append(batch)
            self._wake.set()

    def reconnect(self) -> None:
        """Says hello again, because there is something to say; nothing else is sent before."""
        self._leaving = self._hurried = True
        self._drained.set()

    def _finish(self, error: ForerunClientError) -> None:
        """The session is over, and not because it was closed here."""
        self._closed = error
        self._alone = not self._closing and self._listener.goes_on(error)
        if not self._opened.done():
            self._opened.set_exception(error)
        if not self._ended.done():
            self._ended.set_result(None)
        if self._alone:
            self._ordinary.clear()
            return
        self.calls.lose_all(
            Failure(error.reason, f"nobody will answer: {error.message}", error.metadata, error.retry_after_seconds)
        )

    async def _connect(self) -> None:
        """One stream from Hello to its end. Returns where connecting again is wanted."""
        call: Any = self._stub().Connect(metadata=self._metadata())
        tasks: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_WELCOME_SECONDS):
                hello = session_pb2.Hello()
                hello.CopyFrom(self._hello)
                hello.resume = self._resume
                hello.direct_writes = self._listener.direct_writes()
                await self._write(call, session_pb2.ConnectRequest(hello=hello))
                first = await self._first(call)
            if first is grpc.aio.EOF:
                return
            self._take(first)
            tasks = [
                loop.create_task(self._read_all(call)),
                loop.create_task(self._write_all(call)),
                loop.create_task(self._until_drained()),
            ]
            reader, _, drained = tasks
            await asyncio.wait([reader, drained], return_when=asyncio.FIRST_COMPLETED)
            if reader.cancelled():
                raise _channel_closed()
            if reader.done():
                reader.result()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            call.cancel()

    @staticmethod
    async def _first(call: Any) -> Any:
        """The first message. A channel that is closed meanwhile looks like a cancellation of this task, and is none."""
        try:
            return await call.read()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise _channel_closed() from None

    async def _read_all(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            self._take(message)
            if self._ended.done():
                return

    async def _write_all(self, call: Any) -> None:
        while True:
            self._wake.clear()
            while self._urgent:
                if not await self._write(call, self._urgent.popleft()):
                    return
            if self._ordinary and (not self._leaving or self._closing):
                if not await self._write_ordinary(call, self._ordinary.popleft()):
                    return
            elif not self._urgent:
                await self._wake.wait()

    async def _write_ordinary(self, call: Any, item: Outgoing) -> bool:
        if isinstance(item, Batch):
            batch = item.render(asyncio.get_running_loop().time())
            if batch is None:
                return True
            for one in item.open:
                one.written = one.on_its_way = True
            if not await self._write(call, session_pb2.ConnectRequest(batch=batch)):
                return False
            # A call that was taken back while no connection was open: only now the platform can find it.
            return all([await self._write(call, self._cancellation(one)) for one in item.open if one.taken_back])
        if await self._write(call, item):
            return True
        # The stream was over before: it certainly did not leave.
        self._ordinary.appendleft(item)
        return False

    @staticmethod
    async def _write(call: Any, message: session_pb2.ConnectRequest) -> bool:
        try:
            await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False  # the stream is over; whoever reads it learns why
        return True

    async def _until_drained(self) -> None:
        await self._drained.wait()

    # ------------------------------------------------------------ messages

    def _take(self, message: session_pb2.ConnectResponse) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                self._resume = True
                self._listener.welcomed(message.welcome)
                if not self._opened.done():
                    self._opened.set_result(None)
            case "result":
                self.calls.take_result(message.result)
                self._look_whether_drained()
            case "chunk":
                self.calls.take_chunk(message.chunk)
            case "invocation":
                self._listener.invoked(message.invocation)
            case "invocation_cancel":
                self._listener.invocation_cancelled(message.invocation_cancel.invocation)
            case "go_away":
                self._leave(message.go_away.seconds)
            case "failure":
                self._refused(message.failure)
            case "ended" if not self._ended.done():
                if message.ended.unsettled_executions:
                    _LOG.warning(
                        "session %s has ended, and %d of its tools had not: they may still change something",
                        self._hello.session,
                        message.ended.unsettled_executions,
                    )
                self._ended.set_result(message.ended.totals)

    def _leave(self, seconds: float) -> None:
        """The connection will end: its open calls finish on it, everything else waits for the next one."""
        self._leaving = True
        self._look_whether_drained()
        remaining = max(0.0, seconds - _GOODBYE_MARGIN_SECONDS)
        self._goodbye = asyncio.get_running_loop().call_later(remaining, self._drained.set)

    def _look_whether_drained(self) -> None:
        if self._leaving and not self.calls.on_its_way:
            self._drained.set()

    def _refused(self, message: Any) -> None:
        failure = failure_of(message)
        turn = failure.metadata.get("turn", "")
        if turn.isdigit():
            self.calls.reject(int(turn), failure)
        else:
            _LOG.warning("the platform could not take a message of session %s: %s", self._hello.session, failure.reason)
        if failure.reason in _REFUSALS:
            self._leaving = True  # no further message is read: what is asked now is not even sent


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
