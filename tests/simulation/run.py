"""One run: a whole platform, its agents, its world and its faults, decided by one seed."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio

from forerun.cli.virtual import SERVICES
from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import Unavailable
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import run_virtual
from forerun.v1 import session_pb2, session_pb2_grpc
from tests.simulation.agents import Agent
from tests.simulation.calls import draw_taste
from tests.simulation.checks import violations
from tests.simulation.diary import Diary
from tests.simulation.evidence import Evidence, Intents
from tests.simulation.faults import CountedFaults
from tests.simulation.files import Desk, InPlace
from tests.simulation.moments import Moments
from tests.simulation.nemesis import (
    KINDS,
    REPLICAS,
    Nemesis,
    Platform,
    draw_kinds,
    draw_rates,
    draw_temper,
    replace_file,
)
from tests.simulation.oracle import Oracle
from tests.simulation.people import PEOPLE, Person
from tests.simulation.plans import draw_plans
from tests.simulation.policy import draw_policy
from tests.simulation.reports import Reports
from tests.simulation.tap import Tap
from tests.simulation.world import World

_MEMORY: Final = "/dev/shm"  # where there is one, nothing waits for a disk
_VIRTUAL_SECONDS: Final = 1_500.0
_RECONNECT_SECONDS: Final = 15.0
_IDLE_SECONDS: Final = 45.0
_SETTLE_SECONDS: Final = 25.0
_LEFT_SECONDS: Final = 120.0
_QUIET_SECONDS: Final = 6.0
_STOP_SECONDS: Final = 20.0
_NEWS_SECONDS: Final = 3.0
_OBSERVATION_BYTES: Final = 2_000_000
_EXPECTED: Final = frozenset(
    {
        # The run has taken the broker away.
        "start failed",
        "models were not saved",
        # The checks judge it from the ledger, where they can see what the second execution was.
        "an audit found another result than the one that was committed",
    }
)


@dataclass(slots=True)
class Report:
    """What a run showed.

    Attributes:
        seed: Its seed.
        violations: What was wrong; empty for a clean run.
        digest: Digest of everything that happened in the run.
        faults: How often each fault happened.
        outcomes: Speculations by outcome.
        counts: Calls by how they were served and how they ended, and other numbers.
        trace: What the digest was made of.
    """

    seed: int
    violations: list[str] = field(default_factory=list)
    digest: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


class _Alarms(logging.Handler):
    """Collects what services log as errors, but for what is expected.

    Attributes:
        found: The others.
        lines_lost: An orderly stop could not store all ledger lines in its time.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self.lines_lost = False

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a record."""
        message = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if message == "ledger lines were not stored":
            self.lines_lost = True
        elif message not in _EXPECTED and not isinstance(error, Unavailable):
            detail = f": {type(error).__name__}: {error}" if error is not None else ""
            self.found.append(f"{record.name}: {message} {getattr(record, 'fields', '')}{detail}")


def run_seed(seed: int, kinds: Sequence[str] | None = None) -> Report:
    """Runs one seed.

    Args:
        seed: Decides everything.
        kinds: Kinds of fault; None draws them.
    """
    report = Report(seed)
    alarms = _Alarms()
    mutes: list[str] = []
    root = logging.getLogger()
    root.addHandler(alarms)  # with a handler there is no last resort that prints
    try:
        with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as directory:

            async def main(clock: LoopClock, ids: SeededIds) -> None:
                run = _Run(seed, kinds, Path(directory), clock, ids, report, alarms)
                asyncio.get_running_loop().set_exception_handler(lambda _, context: mutes.append(_complaint(context)))
                async with asyncio.timeout(_VIRTUAL_SECONDS):
                    await run.run()

            run_virtual(main, seed=seed)
    except Exception as error:
        report.violations.append(f"the run failed: {type(error).__name__}: {error}")
        logging.getLogger(__name__).debug("the run failed", exc_info=error)
        if not isinstance(error, TimeoutError):
            raise
    finally:
        gc.collect()  # what was never retrieved says so now, and not in a later run
        root.removeHandler(alarms)
    report.violations += [f"an error nobody expects: {text}" for text in dict.fromkeys(alarms.found)]
    report.violations += [f"the event loop complained: {text}" for text in mutes]
    report.digest = hashlib.sha256("\n".join(report.trace).encode()).hexdigest()
    return report


class _Run:
    def __init__(
        self,
        seed: int,
        kinds: Sequence[str] | None,
        directory: Path,
        clock: LoopClock,
        ids: SeededIds,
        report: Report,
        alarms: _Alarms,
    ) -> None:
        def chance(name: str) -> random.Random:
            return random.Random(f"{seed}/{name}")

        self._report = report
        self._alarms = alarms
        self._chance = chance("run")
        drawn = draw_kinds(self._chance)
        self._kinds = drawn if kinds is None else frozenset(kinds) & frozenset(KINDS)
        self._world = World(chance("world"), draw_temper(self._chance, self._kinds))
        moments = Moments()
        self._desk = Desk(chance("desk"), moments)
        self._tap = Tap()
        self._diary = Diary()
        self._reports = Reports()
        policy_file = directory / "policy.yaml"
        policy = draw_policy(self._chance, first=True)
        replace_file(policy_file, policy.text, stamp_seconds=0.0)
        taste = draw_taste(self._chance, self._kinds)
        learns, guided = self._chance.random() < 0.2, self._chance.random() < 0.9
        oracle = Oracle(self._diary.sessions, chance("oracle"), taste, learns=learns) if guided else None
        self._slots = slots = (self._chance.choice([2, 3, 64]), self._chance.choice([1, 2, 8]))
        self._faults = CountedFaults(draw_rates(self._chance, self._kinds), SeededIds(seed + 1, clock), moments)
        self._platform = Platform(
            directory=directory,
            policy_file=policy_file,
            clock=clock,
            ids=ids,
            http=self._world.transport,
            engine=oracle,
            faults=self._faults,
            slots=slots,
            moments=moments,
            make_runner=self._desk.runner,
            settings={
                "orchestrator": {"reconnect_seconds": _RECONNECT_SECONDS, "session_idle_seconds": _IDLE_SECONDS},
                "sandbox": {"max_observation_bytes": _OBSERVATION_BYTES},
            },
        )
        self._nemesis = Nemesis(self._platform, chance("nemesis"), self._kinds, [policy], taste.staged)
        self._plans = draw_plans(chance("plans"), taste)
        self._ids = SeededIds(seed + 2, clock)
        self._agents_chance = chance("agents")

    async def run(self) -> None:
        """The whole run and the examination of what it left."""
        asyncio.get_running_loop().set_default_executor(InPlace(1))
        self._world.announced = Intents(self._platform.broker).stored
        self._world.tenant_of = lambda session: self._diary.sessions[session].person.tenant
        await self._reports.listen(self._platform.bus)
        await self._start()
        news = asyncio.ensure_future(self._news())
        agents = [
            Agent(
                plan,
                channels=self._channels,
                ids=self._ids,
                tap=self._tap,
                diary=self._diary,
                chance=self._agents_chance,
            )
            for plan in self._plans
        ]
        nemesis = asyncio.ensure_future(self._nemesis.run())
        await asyncio.gather(*(agent.run() for agent in agents))
        await nemesis
        await asyncio.sleep(_SETTLE_SECONDS)
        news.cancel()
        with suppress(asyncio.CancelledError):
            await news
        totals = await self._final_totals()
        await asyncio.sleep(_QUIET_SECONDS)
        quiet_at = asyncio.get_running_loop().time()
        for name in REPLICAS[1:]:
            await self._platform.stop_service(name, _STOP_SECONDS)
        await self._platform.stop()
        self._examine(totals, quiet_at)

    def _channels(self, person: Person) -> list[grpc.aio.Channel]:
        return [self._tap.channel(self._platform.replica_channel(name, person)) for name in REPLICAS]

    async def _final_totals(self) -> list[session_pb2.Totals]:
        """What all replicas have counted, once no session is open any more.

        One that its client has left goes on to the end of its calls, and ends some time later.
        """
        tenants = {person.tenant: person for person in reversed(PEOPLE)}
        last = asyncio.get_running_loop().time() + _LEFT_SECONDS
        while True:
            totals = [await self._totals(name, person) for name in REPLICAS for person in tenants.values()]
            if asyncio.get_running_loop().time() > last or not any(one.sessions for one in totals):
                return totals
            await asyncio.sleep(1.0)

    async def _totals(self, replica: str, person: Person) -> session_pb2.Totals:
        stub = session_pb2_grpc.SessionServiceStub(self._platform.replica_channel(replica, person))
        response = await stub.GetTotals(session_pb2.GetTotalsRequest(), timeout=5.0)
        return response.totals

    async def _start(self) -> None:
        for name in (*SERVICES, *REPLICAS[1:]):
            await self._nemesis.start(name)

    async def _news(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 2 * _NEWS_SECONDS))
            self._world.write_elsewhere()

    def _examine(self, totals: Sequence[session_pb2.Totals], quiet_at: float) -> None:
        """Judges what happened."""
        report = self._report
        leaked = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        evidence = Evidence(
            world=self._world,
            tap=self._tap,
            diary=self._diary,
            nemesis=self._nemesis,
            broker=self._platform.broker,
            leaked=sorted(leaked),
            kinds=self._kinds,
            lines_lost=self._alarms.lines_lost,
            totals=totals,
            wiretap=self._platform.wiretap,
            commands_open=self._desk.open,
            reports=self._reports,
            slots=self._slots,
            quiet_at=quiet_at,
        )
        report.violations += violations(evidence)
        report.faults = self._nemesis.counts + self._faults.counts + self._world.misbehaved
        report.outcomes = evidence.outcomes()
        report.counts = evidence.counts()
        report.counts["commands"] = self._desk.started
        report.trace = [*self._tap.trace, *self._nemesis.trace, *evidence.trace()]


def _complaint(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {type(error).__name__}: {error}"
