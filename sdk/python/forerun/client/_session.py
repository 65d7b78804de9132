"""One session of one agent, as its author sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar, overload

from forerun.client._calls import DEADLINE_MAX_SECONDS, Batch, OpenCall, asked_calls, too_much
from forerun.client._channel import MESSAGE_BYTES
from forerun.client._connection import Connection
from forerun.client._direct import Bypass
from forerun.client._errors import ForerunClientError, InvalidRequest, SessionClosed
from forerun.client._json import Arguments
from forerun.client._message import StreamedMessage
from forerun.client._plan import OnFailure, PlanResult, PlanTask, Progress, RunningPlan, policy_message
from forerun.client._ports import Platform
from forerun.client._results import Call, Failure, Mode, Result, Totals, mode_of, only_reads, totals_of
from forerun.client._tools import Invocations, Tool, tool_of
from forerun.v1 import common_pb2, event_pb2, plan_pb2, session_pb2

DEADLINE_DEFAULT_SECONDS: Final = 60.0
"""The platform's, where a tool's contract has none (compared by a contract test)."""
MARGIN_SECONDS: Final = 5.0
"""After a call's own deadline, for the answer that says so."""
# Longer than the platform waits for what it stops with the session (CANCEL_SETTLE_SECONDS).
_CLOSE_SECONDS: Final = 8.0

_LOG: Final = logging.getLogger("forerun.client")
# A platform that had heard nothing for too long ends the session.
_FORGOTTEN: Final = frozenset({"SESSION_ENDED", "SESSION_IDLE", "SESSION_NOT_FOUND"})

_Function = TypeVar("_Function", bound=Callable[..., Any])


class AsyncSession:
    """A session. Made by `AsyncClient.session`, used as an async context manager.

    One message of the model is one batch of calls: give calls that the model asked for together to `call_tools`
    together, so that they run side by side as far as their contracts allow.
    """

    def __init__(
        self,
        platform: Platform,
        agent: str,
        *,
        session_id: str,
        tools: Sequence[str],
        mode: Mode | None,
        label: str,
        resume: bool,
        own_tools: Mapping[str, Tool],
        connect_timeout_seconds: float,
    ) -> None:
        self.id = session_id
        self.agent = agent
        self.totals: Totals | None = None
        """Counts of the session, after it was closed; None where the platform could not be asked."""
        self.mode: Mode | None = mode
        """The mode in force, once the session is open: what was asked for, as far as the policy allows it."""
        self.held_out = False
        """True where the hold-out took the session, as a comparison without speculation."""
        self.policy = ""
        """Name and version of the policy in force."""
        self._platform = platform
        self._tools = tuple(tools)
        self._label = label
        self._resume = resume
        self._own_tools = dict(own_tools)
        self._connect_timeout_seconds = connect_timeout_seconds
        self._connection: Connection | None = None
        self._invocations = Invocations(self._own_tools, self._tool_answered)
        self._bypass = Bypass(
            platform.direct,
            self._own_tools,
            after_seconds=platform.direct_after_seconds,
            reads=lambda tool: tool in self._own_reads or platform.reads(agent, tool),
            changed=lambda direct: platform.goes_direct(self, direct),
        )
        self._turn = 0
        self._message_open = False
        self._spoken = False
        self._extending: set[asyncio.Task[None]] = set()
        self._own_seconds: Mapping[str, float] = {}
        self._own_reads: frozenset[str] = frozenset()
        self._learned = False

    @property
    def direct(self) -> bool:
        """Calls run around the platform now, without speculation, because it cannot be reached."""
        return self._bypass.active

    @property
    def direct_calls(self) -> int:
        """How many calls ran around the platform."""
        return self._bypass.calls

    # ------------------------------------------------------------ life

    async def __aenter__(self) -> AsyncSession:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close("done" if kind is None else f"the agent failed: {kind.__name__}")

    async def open(self) -> None:
        """Opens the session; `async with` does it.

        With a way around the platform (`AsyncClient(direct=...)`, functions registered as tools) a platform that cannot
        be reached is waited for a moment only, and the session begins without it.

        Raises:
            ForerunClientError: it cannot be opened.
        """
        if self._connection is not None:
            raise InvalidRequest("PROTOCOL_VIOLATION", "a session is opened once; make a new one")
        own = [tool.message() for tool in self._own_tools.values()]
        hello = session_pb2.Hello(
            session=self.id,
            agent=self.agent,
            tools=self._tools,
            client_tools=own,
            resume=self._resume,
            label=self._label,
        )
        if self.mode is not None:
            hello.mode = common_pb2.Mode.Value(f"MODE_{self.mode.name}")
        connection = self._connection = self._platform.connect(self, hello)
        bypass, bound = self._bypass, self._connect_timeout_seconds
        bypass.begin(connection)
        if bypass.enabled:
            bound = min(bound, self._platform.direct_after_seconds)
        try:
            if not await connection.open(bound, stay=bypass.enabled):
                bypass.activate()
        except BaseException:
            await bypass.close()
            self._platform.forget(self)
            raise

    async def close(self, reason: str = "done") -> None:
        """Ends the session: what runs ahead is cancelled, its workspace is dropped, `totals` are set. May be repeated.

        Args:
            reason: For the journal.
        """
        connection = self._connection
        if connection is None:
            return
        self._platform.forget(self)
        # Whoever cannot be reached is not told.
        totals = await connection.close(reason, 0.0 if self._bypass.active else _CLOSE_SECONDS)
        await self._bypass.close()
        if totals is not None:
            self.totals = totals_of(totals)
        for task in self._extending:
            task.cancel()
        await self._invocations.close()

    # ------------------------------------------------------------ tools of the agent's own program

    @overload
    def tool(self, function: _Function, /) -> _Function: ...

    @overload
    def tool(
        self, /, *, name: str | None = None, schema: Mapping[str, object] | None = None
    ) -> Callable[[_Function], _Function]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        schema: Mapping[str, object] | None = None,
    ) -> Any:
        """Registers a function as a tool of this session, before it is opened.

        A coroutine function is awaited, any other one runs in a thread. What it returns is the observation (text,
        bytes, or a JSON value); what it raises is a result with `tool_error`. Without a contract in the policy such
        a tool counts as a write to everything and never runs ahead.

        Args:
            function: The function, called with the arguments as keywords.
            name: The tool's name; the function's by default.
            schema: JSON Schema of the arguments; by default it follows from the annotations.

        Raises:
            InvalidRequest: the session is open already, or no schema follows from the signature.
        """

        def register(given: _Function) -> _Function:
            if self._connection is not None:
                raise InvalidRequest("PROTOCOL_VIOLATION", "register tools before the session is opened")
            made = tool_of(given, name=name, schema=schema)
            self._own_tools[made.name] = made
            self._invocations = Invocations(self._own_tools, self._tool_answered)
            return given

        return register if function is None else register(function)

    # ------------------------------------------------------------ what happens in the agent

    async def user_turn(self, text: str) -> None:
        """The user said something."""
        if self._spoken:
            self._message_open = self._spoken = False
        self._send(session_pb2.ClientEvent(user_turn=event_pb2.UserTurn(text=text)))

    async def model_started(self) -> None:
        """A model request was started: the platform may run ahead from now on. Repeat it for a repeated request."""
        if not self._message_open or self._spoken:
            self._next_message()
        self._send(session_pb2.ClientEvent(model_started=event_pb2.ModelStarted(turn=self._turn)))

    async def assistant_message(self, text: str) -> None:
        """The model's message is complete; its calls follow with `call_tools`."""
        if not self._message_open or self._spoken:
            self._next_message()
        self._spoken = True
        message = event_pb2.AssistantMessage(turn=self._turn, text=text)
        self._send(session_pb2.ClientEvent(assistant_message=message))

    async def partial_message(self, calls: Sequence[Call], *, first: int = 0) -> None:
        """The model's message still streams, and the arguments of these calls are complete: safe reads start at once.

        Nothing is answered yet, and nothing of it counts unless `call_tools` asks for the same. See
        `streamed_message`, which finds out when arguments are complete.

        Args:
            calls: Calls of the message, in order and without a gap.
            first: Position of the first of them in the message; those before it were told already.

        Raises:
            InvalidRequest: as `call_tools`.
        """
        messages = asked_calls(calls, None)
        for message in messages:
            message.index += first
        self._open_connection()
        if not self._message_open:
            self._next_message()
        self._tell(session_pb2.ConnectRequest(partial=session_pb2.PartialMessage(turn=self._turn, calls=messages)))

    def streamed_message(self) -> StreamedMessage:
        """A message that is taken piece by piece while it streams, so that its safe reads start early."""
        return StreamedMessage(self)

    async def task_outcome(self, reward: float, label: str = "") -> None:
        """How the task went, as far as the agent knows.

        Args:
            reward: 0..1.
            label: Free, such as `solved`.
        """
        self._send(session_pb2.ClientEvent(task_outcome=event_pb2.TaskOutcome(reward=reward, label=label)))

    # ------------------------------------------------------------ calls

    async def call_tool(
        self, name: str, arguments: Arguments | None = None, *, timeout_seconds: float | None = None
    ) -> Result:
        """Runs one call and returns its result.

        Args:
            name: Name of the tool.
            arguments: A mapping, or JSON text exactly as the model's provider gave it.
            timeout_seconds: Deadline of the call. None: the tool's own limit.

        Raises:
            CallError: the tool did not answer; the subclass and `reason` say why.
            ForerunClientError: the call could not be asked at all.
        """
        calls = [Call(name, {} if arguments is None else arguments)]
        return (await self.call_tools(calls, timeout_seconds=timeout_seconds))[0].raise_for_status()

    async def call_tools(self, calls: Sequence[Call], *, timeout_seconds: float | None = None) -> list[Result]:
        """Runs the calls of one message; results in the same order, each with its own status.

        Cancelling the task that waits here takes all of them back.

        Args:
            calls: In the order of the message.
            timeout_seconds: Deadline of each call, from now. None: the tools' own limits.

        Raises:
            ForerunClientError: nothing was asked: arguments without an exact JSON form, too many calls, a session
                that is closed.
        """
        batch = self._ask(calls, timeout_seconds)
        try:
            return [await asyncio.shield(one.answer) for one in batch.calls]
        except asyncio.CancelledError:
            self._take_back(batch)
            raise

    async def stream_tools(
        self, calls: Sequence[Call], *, timeout_seconds: float | None = None
    ) -> AsyncGenerator[Result, None]:
        """Runs the calls of one message; results as they come. Leaving the iteration early takes the others back.

        Args:
            calls: In the order of the message.
            timeout_seconds: Deadline of each call, from now. None: the tools' own limits.

        Raises:
            ForerunClientError: nothing was asked, as in `call_tools`.
        """
        batch = self._ask(calls, timeout_seconds)
        done: asyncio.Queue[Result] = asyncio.Queue()
        for one in batch.calls:
            one.answer.add_done_callback(lambda future: done.put_nowait(future.result()))
        try:
            for _ in batch.calls:
                yield await done.get()
        finally:
            self._take_back(batch)

    def plan(
        self,
        *,
        on_failure: OnFailure = OnFailure.ISOLATE,
        reads_first: bool = False,
        in_flight: int | None = None,
        progress: Progress | None = None,
    ) -> RunningPlan:
        """A plan: calls that refer to each other's results. It is one message of the session.

        Args:
            on_failure: What the failure of a task does to the others.
            reads_first: Only safe reads start before the plan is complete.
            in_flight: Tasks that run at the same time. None: the platform's own bound.
            progress: Told how far the plan is.

        Raises:
            SessionClosed: the session is not open.
        """
        connection = self._open_connection()
        if not self._message_open:
            self._next_message()
        self._message_open = self._spoken = False
        options = plan_pb2.PlanOptions(failure=policy_message(on_failure), reads_first=reads_first)
        if in_flight is not None:
            options.in_flight = in_flight
        return connection.plan(self._turn, options, progress)

    async def run_plan(self, tasks: Sequence[PlanTask], *, on_failure: OnFailure = OnFailure.ISOLATE) -> PlanResult:
        """Runs a plan that is complete; how each task ended.

        Raises:
            ForerunClientError: it is no plan, or the platform cannot be reached.
        """
        async with self.plan(on_failure=on_failure) as plan:
            await plan.add(*tasks)
            return await plan.finish()

    async def cancel(self, call: Call) -> None:
        """Takes one call back: its result becomes `cancelled`, or `outcome_unknown` where it may have taken effect.

        A call that is done stays as it is.
        """
        connection = self._open_connection()
        one = connection.calls.find(call)
        if one is not None:
            connection.take_back(one)

    def _ask(self, calls: Sequence[Call], timeout_seconds: float | None) -> Batch:
        connection = self._open_connection()
        messages = asked_calls(calls, timeout_seconds)
        if not self._message_open:
            self._next_message()
        turn = self._turn
        self._message_open = self._spoken = False
        loop = asyncio.get_running_loop()
        opened = [
            OpenCall(call, turn, message, loop.create_future()) for call, message in zip(calls, messages, strict=True)
        ]
        batch = Batch(turn, opened, timeout_seconds, loop.time())
        if opened:
            bound = DEADLINE_DEFAULT_SECONDS if timeout_seconds is None else timeout_seconds
            batch.timer = loop.call_at(batch.asked_at + bound + MARGIN_SECONDS, self._late, batch)
            connection.ask(batch)
            if self._bypass.active:
                self._bypass.ask(batch)
        return batch

    def _take_back(self, batch: Batch) -> None:
        if self._connection is not None:
            for one in batch.open:
                self._connection.take_back(one)

    # ------------------------------------------------------------ calls without an answer

    def _late(self, batch: Batch) -> None:
        """The time of a batch is over, and the platform did not say so."""
        if batch.timeout_seconds is not None:
            self._give_up(batch)
            return
        task = asyncio.get_running_loop().create_task(self._extend(batch), name="tool time limits")
        self._extending.add(task)
        task.add_done_callback(self._extending.discard)

    async def _extend(self, batch: Batch) -> None:
        """Without a deadline of the caller the tools' own limits count: some take longer than most.

        They count from the last answer: a call that waits for others of its message has not used any of its time.
        """
        limits = dict(self._own_seconds)
        with contextlib.suppress(ForerunClientError):
            limits |= await self._platform.timeouts(self.agent)
        loop = asyncio.get_running_loop()
        longest = max((limits.get(one.call.name, 0.0) for one in batch.open), default=0.0)
        due = batch.progressed_at + min(longest, DEADLINE_MAX_SECONDS) + MARGIN_SECONDS
        if due <= loop.time():
            self._give_up(batch)
        else:
            batch.timer = loop.call_at(due, self._late, batch)

    def _give_up(self, batch: Batch) -> None:
        if self._connection is not None:
            seconds = asyncio.get_running_loop().time() - batch.asked_at
            self._connection.give_up(
                batch,
                Failure("DEADLINE_EXCEEDED", f"the platform gave no answer within {seconds:.0f} s of the ask"),
            )

    # ------------------------------------------------------------ between connection and session

    def welcomed(self, message: session_pb2.Welcome) -> None:
        """Called by the connection: the session is open, or open again."""
        self.mode = mode_of(message.mode)
        self.held_out = message.held_out
        self.policy = message.policy
        self._turn = max(self._turn, message.last_turn)
        self._own_seconds = {tool.name: tool.contract.timeout_seconds for tool in message.client_tools}
        self._own_reads = frozenset(tool.name for tool in message.client_tools if only_reads(tool.contract))
        self._bypass.up()
        if self._bypass.enabled and not self._learned:
            self._learned = True
            task = asyncio.get_running_loop().create_task(self._platform.learn(self.agent), name="tool contracts")
            self._extending.add(task)
            task.add_done_callback(self._extending.discard)

    def invoked(self, message: session_pb2.ClientToolInvocation) -> None:
        """Called by the connection: a tool of this program is asked for."""
        self._invocations.start(message)

    def invocation_cancelled(self, invocation: str) -> None:
        """Called by the connection: it is not wanted any more."""
        self._invocations.cancel(invocation)

    def disconnected(self) -> None:
        """Called by the connection: it broke, and the platform has given up on what it had asked for over it."""
        self._invocations.cancel_all()
        self._bypass.down()

    def direct_writes(self) -> session_pb2.DirectWrites.ValueType:
        """Called by the connection before it greets the platform."""
        return self._bypass.wrote()

    def takes(self, one: OpenCall, result: Result, batch: Batch) -> bool:
        """Called by the connection with an answer."""
        return self._bypass.takes(one, result, batch)

    def goes_on(self, error: ForerunClientError) -> bool:
        """Called by the connection: the platform has ended the session, perhaps because it had not heard of it."""
        if error.reason not in _FORGOTTEN or not self._bypass.active:
            return False
        _LOG.warning(
            "the platform has ended session %s meanwhile (%s); its further calls run directly, a new session is "
            "connected again",
            self.id,
            error.reason,
        )
        return True

    def _tool_answered(self, result: session_pb2.ClientToolResult) -> None:
        if self._connection is not None:
            self._connection.send_now(session_pb2.ConnectRequest(tool_result=result))

    def _next_message(self) -> None:
        self._turn += 1
        self._message_open, self._spoken = True, False

    def _send(self, event: session_pb2.ClientEvent) -> None:
        size_bytes = event.ByteSize()
        if size_bytes > MESSAGE_BYTES - 1024:
            raise too_much("bytes", size_bytes, MESSAGE_BYTES - 1024)
        self._tell(session_pb2.ConnectRequest(event=event))

    def _tell(self, request: session_pb2.ConnectRequest) -> None:
        """Sends what needs no answer. While the platform is away, for who knows how long, it is dropped."""
        connection = self._open_connection()
        if not self._bypass.active:
            connection.send(request)

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise SessionClosed("SESSION_NOT_OPEN", "open the session first: `async with client.session(...)`")
        self._connection.check()
        return self._connection
