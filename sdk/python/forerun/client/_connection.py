"""The way of one session to the platform: a stream that is opened again when it breaks.

One task owns the stream. After a break the open batches are sent again under their keys; the platform runs none of them
twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from forerun.client._backoff import Backoff
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
from forerun.client._outbox import Outbox, write
from forerun.client._plan import Progress
from forerun.client._plan_local import TaskCalls
from forerun.client._ports import Listener
from forerun.client._results import Failure, Status, failure_of
from forerun.client._running_plan import RunningPlan
from forerun.v1 import plan_pb2, session_pb2, session_pb2_grpc

_LOG: Final = logging.getLogger("forerun.client")

_WELCOME_SECONDS: Final = 15.0
# Before the announced end of a connection, for what is on its way.
_GOODBYE_MARGIN_SECONDS: Final = 0.5
# The token is not what it was when the session was opened, and the connection ends.
_REFUSALS: Final = frozenset({"CREDENTIAL_REFUSED", "CALLER_NOT_ALLOWED"})


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
        self._outbox = Outbox(hello.session)
        self._drained = asyncio.Event()
        self._goodbye: asyncio.TimerHandle | None = None
        self._hurried = False
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
        """Raises why the session takes nothing any more, if so: also while the platform is told that it ends."""
        closed = None if self._alone else self._closed
        if self._outbox.closing and closed is None:
            closed = SessionClosed("SESSION_ENDED", "the session was closed")
        if closed is not None:
            raise type(closed)(
                closed.reason,
                closed.message,
                metadata=closed.metadata,
                retry_after_seconds=closed.retry_after_seconds,
            ) from closed

    def plan(
        self, turn: int, options: plan_pb2.PlanOptions, progress: Progress | None, calls: TaskCalls
    ) -> RunningPlan:
        """A plan of this session, over a stream of its own."""
        hello = session_pb2.Hello()
        hello.CopyFrom(self._hello)
        hello.resume = True
        start = session_pb2.PlanStart(hello=hello, turn=turn, options=options)
        return RunningPlan(
            self._stub, start, metadata=self._metadata, address=self._address, progress=progress, calls=calls
        )

    def ask(self, batch: Batch) -> None:
        """Sends the calls of a message."""
        self.calls.add(batch)
        self.ask_again(batch)

    def send(self, message: session_pb2.ConnectRequest) -> None:
        """Sends an event when its turn comes."""
        self._outbox.add(message)

    def send_now(self, message: session_pb2.ConnectRequest) -> None:
        """Sends what only means something to the running connection."""
        self._outbox.add_now(message)

    def take_back(self, one: OpenCall) -> None:
        """Stops a call. One that was never sent ends at once, any other when the platform says how."""
        if one.answer.done():
            return
        one.taken_back = True
        if one.direct:
            one.withdraw(Failure("CALL_CANCELLED", "the call was taken back while it ran around the platform"))
        elif one.written:
            self._outbox.cancel(one)
        else:
            one.end(Status.CANCELLED, Failure("CALL_CANCELLED", "the call was taken back before it was sent"))

    def give_up(self, batch: Batch, failure: Failure) -> None:
        """Nobody waits for the open calls of a batch any more."""
        for one in batch.open:
            if one.on_its_way:
                self._outbox.cancel(one)
            one.lose(failure)

    async def close(self, reason: str, timeout_seconds: float) -> session_pb2.Totals | None:
        """Ends the session; its totals, or None where the platform could not be told in time."""
        self._outbox.closing = True
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
        backoff = Backoff(loop.time(), self._ids.fraction)
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
                if not self._outbox.closing:
                    self._finish(SessionClosed("SESSION_ENDED", "the platform ended the session"))
                return
            if failure is not None and not self._may_retry(failure):
                self._finish(failure.error)
                return
            self._last_error = failure.error if failure is not None else None
            hurried, self._hurried = self._hurried, False
            if hurried and failure is None:
                continue
            backoff.broke(started_at, loop.time())
            idle = backoff.idle(loop.time())
            await asyncio.sleep(backoff.pause(failure.error.retry_after_seconds if failure is not None else None))
            if idle and self._opened.done() and not len(self.calls):
                await self._outbox.until_something_waits()

    def _may_retry(self, failure: StreamFailure) -> bool:
        tried, self._tried = self._tried, True
        if failure.error.reason == "SESSION_EXISTS" and not self._resume and tried:
            # An earlier try opened it and its welcome was lost.
            self._resume = True
            return True
        return failure.transient

    def _detach(self) -> None:
        """After a break: open batches are sent again, before everything that was not sent yet."""
        self._drained.clear()
        if self._goodbye is not None:
            self._goodbye.cancel()
        self.calls.disconnected()
        self._listener.disconnected()
        self._outbox.disconnected(self.calls)

    @property
    def batches(self) -> list[Batch]:
        """Messages with calls that are not answered."""
        return list(self.calls)

    def ask_again(self, batch: Batch) -> None:
        """Sends what is open of a batch when its turn comes."""
        if not self._alone:
            self._outbox.add(batch)

    def reconnect(self) -> None:
        """Says hello again, because there is something to say; nothing else is sent before."""
        self._outbox.leaving = self._hurried = True
        self._drained.set()

    def _finish(self, error: ForerunClientError) -> None:
        """The session is over, and not because it was closed here."""
        self._closed = error
        self._alone = not self._outbox.closing and self._listener.goes_on(error)
        if not self._opened.done():
            self._opened.set_exception(error)
        if not self._ended.done():
            self._ended.set_result(None)
        if self._alone:
            self._outbox.clear()
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
                await write(call, session_pb2.ConnectRequest(hello=hello))
                first = await self._first(call)
            if first is grpc.aio.EOF:
                return
            self._take(first)
            tasks = [
                loop.create_task(self._read_all(call)),
                loop.create_task(self._outbox.write_all(call)),
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
        self._outbox.leaving = True
        self._look_whether_drained()
        remaining = max(0.0, seconds - _GOODBYE_MARGIN_SECONDS)
        self._goodbye = asyncio.get_running_loop().call_later(remaining, self._drained.set)

    def _look_whether_drained(self) -> None:
        if self._outbox.leaving and not self.calls.on_its_way:
            self._drained.set()

    def _refused(self, message: Any) -> None:
        failure = failure_of(message)
        turn = failure.metadata.get("turn", "")
        if turn.isdigit():
            self.calls.reject(int(turn), failure)
        else:
            _LOG.warning("the platform could not take a message of session %s: %s", self._hello.session, failure.reason)
        if failure.reason in _REFUSALS:
            self._outbox.leaving = True  # no further message is read: what is asked now is not even sent


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
