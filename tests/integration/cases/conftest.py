"""The whole platform in memory and virtual time, with tools and predictions that each test chooses."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forerun.cli.virtual import TENANT, USER_TOKEN, VirtualPlatform
from forerun.client import AsyncClient, AsyncSession
from forerun.core.candidates import Candidate
from forerun.predictor.engine.engine import Engine, Prediction
from forerun.runtime import subjects
from forerun.runtime.auth import CallToken, token_digest
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.memory_network import MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.runtime.virtual import run_virtual
from forerun.sandbox.commands.runner import CommandRunner
from forerun.sandbox.connectors.command import MakeRunner
from forerun.v1 import event_pb2, ledger_pb2

PARTITIONS = 16
"""The orchestrator's default."""


# ---------------------------------------------------------------- the policy


def tool(
    name: str, effect: str, *, reads: Iterable[str] = (), writes: Iterable[str] = (), scope: str = "SESSION",
    schema: dict[str, Any] | None = None, endpoint: dict[str, Any] | None = None, **contract: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """A tool: its contract and where it lives; without an endpoint it is an HTTP call to the test's own server."""

    def resources(templates: Iterable[str]) -> list[dict[str, str]]:
        return [{"template": text, "scope": f"RESOURCE_SCOPE_{scope}"} for text in templates]

    http = {"method": "POST", "url": f"http://tools.test/{{session}}/{name}", "jsonBody": True}
    return (
        {"tool": name, "effect": f"EFFECT_{effect}", "reads": resources(reads), "writes": resources(writes)} | contract,
        {"name": name, "inputSchema": json.dumps(schema or {"type": "object"})} | (endpoint or {"http": http}),
    )


def policy(*tools: tuple[dict[str, Any], dict[str, Any]], egress: Iterable[str] = (), **more: Any) -> dict[str, Any]:
    """A policy file under which a candidate runs ahead as soon as it is believed."""
    rules = {
        "name": "cases", "mode": "MODE_EXACT", "alpha": 1, "lambdaPerSecond": 4, "minimumEvidence": 3, "auditShare": 0,
    }  # fmt: skip
    server = {"name": "s", "egress": list(egress), "tools": [spec for _, spec in tools]}
    return {"policies": [rules | {"tools": [contract for contract, _ in tools]} | more], "servers": [server]}


# ---------------------------------------------------------------- the tools' side


@dataclass
class Run:
    """One execution of a tool, as the tool itself saw it."""

    tool: str
    session: str
    arguments: Any
    body: bytes
    started: float
    ended: float | None = None
    cancelled: bool = False


Answer = Callable[[Run], Awaitable[Any]]


@dataclass
class Tools:
    """The tool server, with its own log.

    Attributes:
        seconds: How long a tool takes that has no answer of its own.
        answers: What tools do instead.
        stubborn_seconds: How long a tool takes to stop when it is told to.
    """

    seconds: float = 2.0
    stubborn_seconds: float = 0.0
    answers: dict[str, Answer] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    running: Counter[str] = field(default_factory=Counter)
    peak: Counter[str] = field(default_factory=Counter)

    def of(self, tool: str) -> list[Run]:
        """The executions of one tool."""
        return [run for run in self.runs if run.tool == tool]

    def app(self) -> Starlette:
        """Serves them."""
        return Starlette(routes=[Route("/{session}/{tool}", self._call, methods=["POST"])])

    async def _call(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        name, body = request.path_params["tool"], await request.body()
        run = Run(name, request.path_params["session"], json.loads(body), body, loop.time())
        self.runs.append(run)
        self.running[name] += 1
        self.peak[name] = max(self.peak[name], self.running[name])
        try:
            answer = self.answers.get(name)
            value = await answer(run) if answer is not None else await self._plain(run)
        except asyncio.CancelledError:
            run.cancelled = True
            if self.stubborn_seconds:
                await asyncio.sleep(self.stubborn_seconds)
            raise
        finally:
            self.running[name] -= 1
            run.ended = loop.time()
        return value if isinstance(value, Response) else JSONResponse(value)

    async def _plain(self, run: Run) -> Any:
        await asyncio.sleep(self.seconds)
        return {"asked": run.arguments}


# ---------------------------------------------------------------- predictions


class Foresight(Engine):
    """The predictor's engine, for which a test says what comes next; it learns like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.next: list[tuple[str, bytes]] = []

    def predict(self, tenant: str, agent: str, session: str) -> Prediction:
        """What was said, with certainty."""
        super().predict(tenant, agent, session)
        candidates = tuple(
            # A site of its own for each, so that what was not asked for before does not turn it off.
            Candidate(name, arguments, 1.0, 1e6, rank, f"{name} {arguments!r}", "the test says so", 2.0)
            for rank, (name, arguments) in enumerate(self.next)
        )
        return Prediction(candidates, 0.0, (), 60.0)


# ---------------------------------------------------------------- the stage


@dataclass
class Stage:
    """What a test gets.

    Attributes:
        platform: All five services.
        client: The client of the first user.
        tools: The tools' side.
        foresight: What is predicted.
    """

    platform: VirtualPlatform
    client: AsyncClient
    tools: Tools
    foresight: Foresight
    ids: Ids
    directory: Path

    @staticmethod
    def now() -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    async def ahead(self, session: AsyncSession, *candidates: tuple[str, bytes]) -> None:
        """The model starts, these candidates are predicted, and what is admitted begins to run."""
        self.foresight.next = list(candidates)
        await session.model_started()
        await asyncio.sleep(0.001)
        self.foresight.next = []

    def set_users(self, *users: tuple[str, str, str]) -> None:
        """Who may call, as (token, principal, rights); whoever is not named may not any more."""
        first = {"sha256": token_digest(USER_TOKEN), "tenant": TENANT, "principal": "user", "scope": "all"}
        tokens = [
            {"sha256": token_digest(token), "tenant": TENANT, "principal": principal, "scope": scope}
            for token, principal, scope in users
        ] + [first | {"role": "operator"}]
        (self.directory / "tokens.json").write_text(json.dumps({"tokens": tokens}))

    @asynccontextmanager
    async def client_of(self, token: str) -> AsyncIterator[AsyncClient]:
        """A client of another user."""
        inbound = Inbound(authenticator=None, metrics=Metrics(None), tracing=Tracing("client"))
        network = MemoryNetwork(self.platform.fabric, inbound, source=f"client-{token}", token=CallToken(token))
        try:
            async with AsyncClient(channel=network.channel("orchestrator:1"), ids=self.ids) as client:
                yield client
        finally:
            await network.close()

    async def journal(self, session: AsyncSession) -> list[event_pb2.SessionEvent]:
        """What is stored of a session."""
        number = subjects.partition(TENANT, session.agent, partitions=PARTITIONS)
        subject = subjects.event(number, TENANT, session.agent, session.id)
        return [
            event_pb2.SessionEvent.FromString(message.data)
            for message in await self.platform.bus.read(subject, limit=10_000)
        ]

    async def ledger(self, session: AsyncSession) -> list[ledger_pb2.LedgerLine]:
        """The ledger lines of a session."""
        subject = subjects.ledger(TENANT, session.id)
        return [
            ledger_pb2.LedgerLine.FromString(message.data)
            for message in await self.platform.bus.read(subject, limit=10_000)
        ]


Scene = Callable[[Stage], Awaitable[None]]
Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs a scene on a platform with a policy, in virtual time."""

    def run(
        scene: Scene, rules: dict[str, Any], *, tools: Tools | None = None, learning: bool = False,
        slots: tuple[int, int] = (64, 32), settings: dict[str, dict[str, Any]] | None = None,
        make_runner: MakeRunner = CommandRunner,
    ) -> None:  # fmt: skip
        async def main(clock: Clock, ids: Ids) -> None:
            file = tmp_path / "policy.yaml"
            file.write_text(json.dumps(rules))  # JSON is YAML
            served, foresight = tools or Tools(), Foresight()
            platform = VirtualPlatform(
                directory=tmp_path, policy_file=file, clock=clock, ids=ids,
                http=httpx.ASGITransport(app=served.app()), engine=None if learning else foresight,
                slots=slots, settings=settings or {}, make_runner=make_runner,
            )  # fmt: skip
            await platform.start()
            try:
                async with AsyncClient(channel=platform.channel(), ids=ids) as client:
                    await scene(Stage(platform, client, served, foresight, ids, tmp_path))
            finally:
                await platform.stop()

        run_virtual(main, epoch=1_700_000_000.0, seed=1)

    return run
