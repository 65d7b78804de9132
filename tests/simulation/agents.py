"""Agents: they follow their plans with the real client, and write down what they asked and what they got."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress

import grpc.aio

from forerun.client import AsyncClient, AsyncSession, Call, ForerunClientError, Result
from forerun.runtime.ids import Ids
from forerun.v1 import common_pb2, event_pb2, session_pb2, session_pb2_grpc
from tests.simulation.calls import Planned
from tests.simulation.diary import Asked, Diary, asked_of
from tests.simulation.graphs import GraphRun, run_graph
from tests.simulation.people import Person
from tests.simulation.plans import Message, Plan
from tests.simulation.tap import Tap

_OPEN_TRIES = 6
_UNARY_SECONDS = 40.0
EXTRA_INDEX = 900
"""Index of calls that were asked for after the others of their message; those beside them have the next one."""
BESIDE_INDEX = EXTRA_INDEX + 1


class Agent:
    """Follows one plan.

    Args:
        plan: What to do.
        channels: Somebody's channels to each replica of the platform, with the tap in them.
        ids: Makes the session's id.
        tap: Is told of unary calls.
        diary: Where it writes.
        chance: Draws what the plan leaves open.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        channels: Callable[[Person], Sequence[grpc.aio.Channel]],
        ids: Ids,
        tap: Tap,
        diary: Diary,
        chance: random.Random,
    ) -> None:
        self._plan = plan
        own = channels(plan.person)
        self._channels = channels
        self._clients = [AsyncClient(channel=channel, ids=ids) for channel in own]
        self._stubs = [session_pb2_grpc.SessionServiceStub(channel) for channel in own]
        self._replica = chance.randrange(len(own))
        self._ids = ids
        self._tap = tap
        self._diary = diary
        self._chance = chance
        self._next = 0
        self._left = False
        self._besides = 0

    async def run(self) -> None:
        """Does what the plan says, as far as the platform allows it."""
        await asyncio.sleep(self._plan.start_at)
        async with AsyncExitStack() as stack:
            for client in self._clients:
                await stack.enter_async_context(client)
            identity = self._ids.uuid7()
            self._diary.sessions[identity] = self._plan
            try:
                session = await self._open(identity, resume=False)
                await self._follow(session)
            except ForerunClientError as error:
                self._diary.lost.append(error.reason)

    async def _open(self, identity: str, *, resume: bool) -> AsyncSession:
        for attempt in range(_OPEN_TRIES):
            self._replica = self._chance.randrange(len(self._clients))
            session = self._clients[self._replica].session(
                self._plan.agent, session_id=identity, resume=resume and attempt == 0, mode=self._plan.mode
            )
            try:
                await session.open()
                return session
            except ForerunClientError:
                if attempt == _OPEN_TRIES - 1:
                    raise
                await asyncio.sleep(1.0)
        raise AssertionError("not reached")

    async def _follow(self, session: AsyncSession) -> None:
        last = len(self._plan.messages) - 1
        for position, message in enumerate(self._plan.messages):
            if message.move:
                self._tap.vanish(session.id)
                session = await self._open(session.id, resume=True)
            if message.follow:
                message.calls[0].arguments = {"id": self._next}
            if message.user:
                texts = [str(value) for call in message.calls for value in call.arguments.values()]
                await session.user_turn("please look at " + " ".join(texts))
            await session.model_started()
            await self._think(session, message)
            if not message.calls:
                await session.assistant_message("nothing to do")
                continue
            if position == last and self._plan.leave_after is not None:
                await self._leave(session, message, self._plan.leave_after)
                return
            await self._ask(session, message)
        await session.close()

    async def _think(self, session: AsyncSession, message: Message) -> None:
        """The model's request; what is known of its message is told while it streams."""
        first = self._chance.uniform(0.0, message.model_seconds) if message.told else message.model_seconds
        await asyncio.sleep(first)
        if message.told:
            await session.partial_message([Call(one.tool, dict(one.arguments)) for one in message.told])
            await asyncio.sleep(message.model_seconds - first)

    async def _leave(self, session: AsyncSession, message: Message, seconds: float) -> None:
        """Closes the session, or vanishes, while the calls of a message are open."""
        self._left = True
        asking = asyncio.ensure_future(self._ask(session, message))
        await asyncio.sleep(seconds)
        if self._plan.vanishes:
            self._tap.vanish(session.id)
        else:
            await session.close("leaves early")
        with suppress(ForerunClientError):
            await asking

    async def _ask(self, session: AsyncSession, message: Message) -> None:
        if message.graph is not None:
            await self._ask_graph(session, message, GraphRun.of(session.id, message.graph, message.calls))
            return
        loop = asyncio.get_running_loop()
        calls = [Call(one.tool, dict(one.arguments)) for one in message.calls]
        asked_at = loop.time()
        if message.cancel is not None:
            position, seconds = message.cancel
            loop.call_later(seconds, self._take_back, session, calls[position])
        self._diary.open += len(calls)
        beside = asyncio.ensure_future(self._beside(session, message))
        try:
            async with asyncio.timeout(message.give_up):
                results = await session.call_tools(calls, timeout_seconds=message.timeout_seconds)
        except TimeoutError:
            return
        finally:
            self._diary.open -= len(calls)
            await beside
        self._write(session.id, message, results, asked_at)
        if not self._left:
            await self._afterwards(session, message, results[0].turn)

    async def _ask_graph(self, session: AsyncSession, message: Message, run: GraphRun) -> None:
        asked_at = asyncio.get_running_loop().time()
        self._diary.open += len(run.calls)
        self._diary.graphs.append(run)
        beside = asyncio.ensure_future(self._beside(session, message))
        try:
            async with asyncio.timeout(message.give_up):
                await run_graph(session, run)
        except TimeoutError:
            return
        finally:
            self._diary.open -= len(run.calls)
            await beside
            for key, call in run.resolved():
                self._tap.means(key, call.tool, dict(call.arguments))
            self._diary.asked += asked_of(run, asked_at, asyncio.get_running_loop().time())
        if not self._left:
            await self._afterwards(session, message, run.turn)

    async def _beside(self, session: AsyncSession, message: Message) -> None:
        """Asks for one more call while those of the message run."""
        if message.extra is None or message.beside is None:
            return
        await asyncio.sleep(message.beside)
        turn = max((turn for name, turn, _ in self._tap.actions if name == session.id), default=0)
        if turn > self._besides and not self._left:
            self._besides = turn  # of the message before, where the stream has not taken this one yet
            await self._unary(session.id, turn, BESIDE_INDEX, message.extra)

    def _take_back(self, session: AsyncSession, call: Call) -> None:
        async def cancel() -> None:
            with suppress(ForerunClientError):
                await session.cancel(call)

        self._cancelling = asyncio.ensure_future(cancel())

    def _write(self, session: str, message: Message, results: Sequence[Result], asked_at: float) -> None:
        now = asyncio.get_running_loop().time()
        for planned, result in zip(message.calls, results, strict=True):
            self._diary.asked.append(
                Asked(
                    session=session,
                    turn=result.turn,
                    index=result.index,
                    call=planned.copy(),
                    asked_at=asked_at,
                    answered_at=now,
                    timeout_seconds=message.timeout_seconds,
                    calls=len(results),
                    status=result.status.value,
                    served=result.served.value,
                    reason=result.failure.reason if result.failure else "",
                    content=result.content,
                    tool_error=result.tool_error,
                )
            )
            if planned.tool == "get" and result.status.value == "ok" and not result.tool_error:
                with suppress(ValueError):  # no answer of the server: that is for the checks to say
                    self._next = int(json.loads(result.content)["next"])

    # ------------------------------------------------------------ unary calls beside the stream

    async def _afterwards(self, session: AsyncSession, message: Message, turn: int) -> None:
        if message.stranger is not None and message.stranger is not self._plan.person:
            await self._intrude(session.id, turn, message.calls[0], message.stranger)
        if message.extra is not None and message.beside is None:
            await self._unary(session.id, turn, EXTRA_INDEX, message.extra)
        if message.ask_again == "same":
            await self._unary(session.id, turn, 0, message.calls[0], record=False)
        elif message.ask_again == "other":
            other = Planned(message.calls[0].tool, message.calls[0].arguments | {"id": 99})
            status = await self._unary(session.id, turn, 0, other, record=False)
            if status not in (None, "CALL_KEY_CONFLICT"):
                self._diary.conflicts.append(f"{session.id}/{turn}/0 with other arguments ended as {status}")

    async def _intrude(self, session: str, turn: int, planned: Planned, stranger: Person) -> None:
        """Somebody else asks for a call of this session."""
        stub = session_pb2_grpc.SessionServiceStub(self._channels(stranger)[self._replica])
        action = common_pb2.Action(tool=planned.tool, arguments=planned.data)
        request = session_pb2.CallToolsRequest(
            hello=session_pb2.Hello(session=session, agent=self._plan.agent, resume=True),
            batch=session_pb2.CallBatch(turn=turn, calls=[event_pb2.AskedCall(index=0, action=action)]),
        )
        try:
            response = await stub.CallTools(request, timeout=_UNARY_SECONDS)
        except grpc.aio.AioRpcError:
            self._diary.refused += 1
            return
        self._diary.breaches.append(f"{session} answered {stranger.principal} of {stranger.tenant}: {response}")

    async def _unary(self, session: str, turn: int, index: int, planned: Planned, *, record: bool = True) -> str | None:
        """Asks by CallTools; the reason of its failure or its status, None where the platform could not be asked."""
        hello = session_pb2.Hello(session=session, agent=self._plan.agent, resume=True)
        if self._plan.mode is not None:
            hello.mode = common_pb2.Mode.Value(f"MODE_{self._plan.mode.upper()}")
        batch = session_pb2.CallBatch(
            turn=turn,
            calls=[
                event_pb2.AskedCall(index=index, action=common_pb2.Action(tool=planned.tool, arguments=planned.data))
            ],
        )
        asked_at = asyncio.get_running_loop().time()
        self._tap.asked(session, batch)
        request = session_pb2.CallToolsRequest(hello=hello, batch=batch)
        try:
            response = await self._stubs[self._replica].CallTools(request, timeout=_UNARY_SECONDS)
        except grpc.aio.AioRpcError:
            return None
        result = response.results[0]
        status = common_pb2.CallStatus.Name(result.status).removeprefix("CALL_STATUS_").lower()
        self._tap.compare(session, result)
        if record:
            self._diary.asked.append(
                Asked(
                    session=session,
                    turn=turn,
                    index=index,
                    call=planned,
                    asked_at=asked_at,
                    answered_at=asyncio.get_running_loop().time(),
                    timeout_seconds=None,
                    calls=1,
                    status=status,
                    served=common_pb2.Served.Name(result.served).removeprefix("SERVED_").lower(),
                    reason=result.failure.reason,
                    content=result.observation.content,
                    tool_error=result.observation.tool_error,
                )
            )
        return result.failure.reason or status
