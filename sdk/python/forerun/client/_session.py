"""One session of one agent, as its author sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Final

from forerun.client._asking import DEADLINE_DEFAULT_SECONDS, Asking, open_batch
from forerun.client._calls import Batch, asked_calls, too_much
from forerun.client._channel import MESSAGE_BYTES
from forerun.client._connection import Connection
from forerun.client._errors import InvalidRequest, PlatformUnavailable, SessionClosed
from forerun.client._json import Arguments
from forerun.client._listener import SessionListener
from forerun.client._message import StreamedMessage
from forerun.client._plan import OnFailure, PlanResult, PlanTask, Progress, policy_message
from forerun.client._ports import Platform
from forerun.client._results import Call, Mode, Result, ToolInfo, Totals, totals_of
from forerun.client._running_plan import RunningPlan
from forerun.client._tools import Tool, ToolHost
from forerun.v1 import common_pb2, event_pb2, plan_pb2, session_pb2

# Longer than the platform waits for what it stops with the session (CANCEL_SETTLE_SECONDS).
_CLOSE_SECONDS: Final = 8.0


class AsyncSession(ToolHost):
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
        self._platform = platform
        self._tools = tuple(tools)
        self._label = label
        self._resume = resume
        self._own_tools = dict(own_tools)
        self._connect_timeout_seconds = connect_timeout_seconds
        self._connection: Connection | None = None
        self._listener = SessionListener(
            platform,
            session=session_id,
            agent=agent,
            tools=self._own_tools,
            mode=mode,
            direct=lambda direct: platform.goes_direct(self, direct),
            answer=self._tool_answered,
        )
        self._bypass = self._listener.bypass
        self._asking: Asking | None = None
        self._message_open = False
        self._spoken = False

    @property
    def mode(self) -> Mode | None:
        """The mode in force, once the session is open: what was asked for, as far as the policy allows it."""
        return self._listener.mode

    @property
    def held_out(self) -> bool:
        """True where the hold-out took the session, as a comparison without speculation."""
        return self._listener.held_out

    @property
    def policy(self) -> str:
        """Name and version of the policy in force."""
        return self._listener.policy

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
        asked = self._listener.mode
        if asked is not None:
            hello.mode = common_pb2.Mode.Value(f"MODE_{asked.name}")
        connection = self._connection = self._platform.connect(self, hello, self._listener)
        self._asking = Asking(connection, self._bypass, self._listener)
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
        if self._asking is not None:
            self._asking.close()
        await self._listener.close()

    async def list_tools(self) -> list[ToolInfo]:
        """The tools that this session can call: those of the platform, and functions of this program.

        While the platform is away and there is a way around it: those that it had named before.

        Raises:
            ForerunClientError: the platform does not answer, or refuses.
        """
        try:
            known = await self._platform.known_tools(self.agent, ask=not self._bypass.active)
        except PlatformUnavailable:
            if not self._bypass.enabled:
                raise
            known = await self._platform.known_tools(self.agent, ask=False)
        found = {tool.name: tool for tool in known} | {name: self._info(tool) for name, tool in self._own_tools.items()}
        return [tool for name, tool in found.items() if not self._tools or name in self._tools]

    def _info(self, tool: Tool) -> ToolInfo:
        return ToolInfo(
            name=tool.name,
            version="",
            input_schema=tool.schema,
            description=tool.description,
            timeout_seconds=self._listener.own_seconds.get(tool.name) or DEADLINE_DEFAULT_SECONDS,
            reads=self._listener.reads(tool.name),
        )

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
        self._send(session_pb2.ClientEvent(model_started=event_pb2.ModelStarted(turn=self._listener.turn)))

    async def assistant_message(self, text: str) -> None:
        """The model's message is complete; its calls follow with `call_tools`."""
        if not self._message_open or self._spoken:
            self._next_message()
        self._spoken = True
        message = event_pb2.AssistantMessage(turn=self._listener.turn, text=text)
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
        self._tell(
            session_pb2.ConnectRequest(partial=session_pb2.PartialMessage(turn=self._listener.turn, calls=messages))
        )

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
        asking, batch = self._open_asking(), self._ask(calls, timeout_seconds)
        try:
            return [await asyncio.shield(one.answer) for one in batch.calls]
        except asyncio.CancelledError:
            asking.take_back(batch)
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
        asking, batch = self._open_asking(), self._ask(calls, timeout_seconds)
        done: asyncio.Queue[Result] = asyncio.Queue()
        for one in batch.calls:
            one.answer.add_done_callback(lambda future: done.put_nowait(future.result()))
        try:
            for _ in batch.calls:
                yield await done.get()
        finally:
            asking.take_back(batch)

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
        connection, asking = self._open_connection(), self._open_asking()
        options = plan_pb2.PlanOptions(failure=policy_message(on_failure), reads_first=reads_first)
        if in_flight is not None:
            options.in_flight = in_flight
        return connection.plan(self._take_turn(), options, progress, asking)

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
        self._open_connection()
        messages = asked_calls(calls, timeout_seconds)
        batch = open_batch(calls, messages, self._take_turn(), timeout_seconds)
        if calls:
            self._open_asking().open(batch)
        return batch

    def _take_tool(self, tool: Tool) -> None:
        if self._connection is not None:
            raise InvalidRequest("PROTOCOL_VIOLATION", "register tools before the session is opened")
        self._own_tools[tool.name] = tool

    def _tool_answered(self, result: session_pb2.ClientToolResult) -> None:
        if self._connection is not None:
            self._connection.send_now(session_pb2.ConnectRequest(tool_result=result))

    def _take_turn(self) -> int:
        """The number of the message whose calls come now; its calls are all of it."""
        if not self._message_open:
            self._next_message()
        self._message_open = self._spoken = False
        return self._listener.turn

    def _next_message(self) -> None:
        self._listener.turn += 1
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

    def _open_asking(self) -> Asking:
        self._open_connection()
        assert self._asking is not None  # made with the connection
        return self._asking

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise SessionClosed("SESSION_NOT_OPEN", "open the session first: `async with client.session(...)`")
        self._connection.check()
        return self._connection
