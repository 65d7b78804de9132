"""The arms on the platform: sessions of the client, whichever way it reaches the orchestrator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from forerun.cli.replay.agent import Observed, SessionLike, SessionRun
from forerun.cli.replay.controls import SiteWatch
from forerun.cli.replay.positions import Recording
from forerun.cli.replay.scoring import Counts
from forerun.cli.replay.toolserver import label_of
from forerun.cli.replay.traces import RecordedCall, Session
from forerun.cli.replay.training import train_requests
from forerun.client import AsyncClient, AsyncSession, Call, Mode, Result
from forerun.core import limits
from forerun.runtime.bus import Bus, Message, Subscription
from forerun.runtime.ids import Ids
from forerun.runtime.subjects import PREFIX
from forerun.v1 import ledger_pb2, prediction_pb2, prediction_pb2_grpc

_PENDING_LINES = 1_000_000


@dataclass(frozen=True, slots=True)
class PlatformRuns:
    """What an arm gave.

    Attributes:
        runs: Its sessions, in order.
        counts: What the platform says of them.
        lines: Ledger lines of their speculations.
        sites: What became of their call sites.
        trained_on: Sessions that the predictor learned from before.
    """

    runs: Sequence[SessionRun]
    counts: Counts
    lines: Sequence[ledger_pb2.LedgerLine] = ()
    sites: SiteWatch = field(default_factory=SiteWatch)
    trained_on: int = 0


class PlatformArm:
    """Opens sessions on a platform.

    Args:
        arm: Name of the arm, and first part of its labels.
        client: Reaches the platform.
        tools: Tools of each agent.
        mode: Lowers the mode of all sessions.
        charged_seconds: Charged for each call, where the way to the platform takes no time of its own.
    """

    def __init__(
        self,
        arm: str,
        client: AsyncClient,
        tools: Mapping[str, Sequence[str]],
        *,
        mode: Mode | None = None,
        charged_seconds: float = 0.0,
    ) -> None:
        self._arm = arm
        self._client = client
        self._tools = tools
        self._mode = mode
        self._charged_seconds = charged_seconds
        self.counts = Counts()

    @asynccontextmanager
    async def __call__(self, number: int, recording: Recording) -> AsyncIterator[SessionLike]:
        """Opens a session; its counts are added when it ends."""
        agent = recording.session.file
        opened = self._client.session(
            agent, tools=self._tools[agent], mode=self._mode, label=label_of(self._arm, number)
        )
        async with opened as session:
            yield _PlatformSession(session, self._charged_seconds)
        if opened.totals is not None:
            self.counts.add(opened.totals)


class _PlatformSession:
    def __init__(self, session: AsyncSession, charged_seconds: float) -> None:
        self._session = session
        self._charged_seconds = charged_seconds

    async def user_turn(self, text: str) -> None:
        await self._session.user_turn(text)

    async def model_started(self, turn: int) -> None:
        await self._session.model_started()

    async def assistant_message(self, turn: int, text: str) -> None:
        await self._session.assistant_message(text)

    async def call_batch(self, turn: int, calls: Sequence[RecordedCall]) -> Sequence[Observed]:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        asked = [Call(call.tool, call.arguments, call.provider_call_id) for call in calls]
        results = await self._session.call_tools(asked)
        await asyncio.sleep(self._charged_seconds * len(calls))
        seconds = loop.time() - started_at
        return [_observed(result, seconds) for result in results]


def _observed(result: Result, seconds: float) -> Observed:
    return Observed(
        content=result.content,
        tool_error=result.tool_error,
        status=result.status.value,
        served=result.served.value,
        seconds=seconds,
        execution_seconds=result.execution_seconds,
    )


async def train(
    channel: grpc.aio.Channel,
    sessions: Sequence[Session],
    tools: Mapping[str, Sequence[str]],
    *,
    tenant: str,
    ids: Ids,
    ended_at: float,
    token: str = "",
) -> int:
    """Lets the predictor learn from recorded sessions.

    Args:
        channel: Reaches the predictor.
        sessions: What to learn from.
        tools: Tools of each agent.
        tenant: Whose predictor learns.
        ids: Makes the ids of sessions and events.
        ended_at: Epoch seconds at which the last session ends.
        token: Bearer token, where the channel does not send one itself.

    Returns:
        How many sessions it learned from.
    """
    stub = prediction_pb2_grpc.PredictionServiceStub(channel)
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    learned = 0
    for agent in dict.fromkeys(session.file for session in sessions):
        of_agent = [session for session in sessions if session.file == agent]
        requests = train_requests(of_agent, tenant=tenant, tools=tools[agent], ids=ids, ended_at=ended_at)
        learned += (
            await stub.Train(_stream(requests), timeout=limits.DEADLINE_MAX_SECONDS, metadata=metadata)
        ).sessions
    return learned


async def _stream(
    requests: Iterator[prediction_pb2.TrainRequest],
) -> AsyncIterator[prediction_pb2.TrainRequest]:
    for request in requests:
        yield request


class Ledger:
    """The ledger as it passes on the bus: the lines of speculations, and what becomes of call sites."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._subscription: Subscription | None = None
        self.lines: list[ledger_pb2.LedgerLine] = []
        self.sites = SiteWatch()

    async def start(self) -> None:
        """Starts to listen."""
        self._subscription = await self._bus.subscribe(
            f"{PREFIX}.ledger.>", self._hear, pending_messages=_PENDING_LINES
        )

    async def stop(self) -> None:
        """Stops listening."""
        if self._subscription is not None:
            await self._subscription.close()

    async def _hear(self, message: Message) -> None:
        line = ledger_pb2.LedgerLine.FromString(message.data)
        self.sites.see(line)
        if line.kind == ledger_pb2.LEDGER_KIND_SPECULATION:
            self.lines.append(line)
