"""What goes wrong in a run: faults of bus, network, processes and people, drawn by the seed and carried out on time."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc.aio

from forerun.cli.virtual import SERVICES, VirtualPlatform
from forerun.runtime.app import App
from forerun.runtime.auth import CallToken
from forerun.runtime.bus_memory_faults import FaultRates
from forerun.runtime.chassis import MakeNetwork
from forerun.runtime.errors import ForerunError
from forerun.runtime.memory_network import MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import NetworkOptions
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.v1 import session_pb2, session_pb2_grpc
from tests.kills import kill
from tests.simulation.clocks import ShiftedClock
from tests.simulation.moments import COMMIT, MERGE, Moments
from tests.simulation.people import OPERATOR, PEOPLE, Person, token_file
from tests.simulation.policy import Policy, draw_policy
from tests.simulation.wiretap import TappedNetwork, Wiretap
from tests.simulation.world import Temper

KINDS: Final = ("tools", "messages", "appends", "broker", "network", "restart", "crash", "switch", "policy", "clock")
"""Every kind of fault; a run has some of them."""
CALM: Final = ("tools", "messages")
"""Kinds in which nobody loses what they know: all books can be judged."""

_HORIZON_SECONDS: Final = 45.0
_RESTART_TRIES: Final = 60
_BUSY_SECONDS: Final = 5.0
_MERGE_SECONDS: Final = 20.0
_TURNS: Final = 16
_STOP_SECONDS: Final = 6.0
REPLICAS: Final = ("orchestrator", "orchestrator-2")
"""Any of them may own a session."""

_LINKS: Final = (
    *(("client", replica) for replica in REPLICAS),
    *((replica, peer) for replica in REPLICAS for peer in ("sandbox", "verifier")),
    ("verifier", "sandbox"),
)
_STOPPABLE: Final = ("predictor", "verifier", "sandbox", *REPLICAS)


def draw_kinds(chance: random.Random) -> frozenset[str]:
    """The kinds of fault of a run: none, a few, or all."""
    draw = chance.random()
    if draw < 0.1:
        return frozenset()
    if draw < 0.25:
        return frozenset(chance.sample(CALM, chance.randint(1, len(CALM))))
    if draw < 0.85:
        return frozenset(chance.sample(KINDS, chance.randint(1, 3)))
    return frozenset(KINDS)


def draw_temper(chance: random.Random, kinds: frozenset[str]) -> Temper:
    """How the tools behave."""
    if "tools" not in kinds:
        return Temper()
    shares = [chance.choice([0.0, 0.03, 0.08, 0.15]) for _ in range(10)]
    shares.append(chance.choice([0.0, 0.1, 0.4]))  # how often writes linger, which seldom matters
    return Temper(*shares)


def draw_rates(chance: random.Random, kinds: frozenset[str]) -> FaultRates:
    """How the bus behaves."""
    messages, appends = "messages" in kinds, "appends" in kinds

    def share(on: bool, most: float) -> float:
        return chance.uniform(0.0, most) if on else 0.0

    return FaultRates(
        core_drop=share(messages, 0.3),
        core_double=share(messages, 0.3),
        core_delay=share(messages, 0.5),
        core_delay_max_seconds=2.0,
        append_refused=share(appends, 0.15),
        append_lost=share(appends, 0.1),
        append_unacknowledged=share(appends, 0.15),
        delivery_lost=share(messages, 0.2),
        verdict_lost=share(messages, 0.2),
    )


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which something was away: what, from, until."""

    what: str
    begin: float
    end: float


@dataclass(slots=True, kw_only=True)
class Platform(VirtualPlatform):
    """A platform with a second replica of the orchestrator, whose services can also be killed or lose the broker."""

    moments: Moments
    wiretap: Wiretap = field(init=False)
    clocks: dict[str, ShiftedClock] = field(default_factory=dict)
    _networks: dict[str, MemoryNetwork] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Everybody has a token and a network of their own."""
        VirtualPlatform.__post_init__(self)
        self.wiretap = Wiretap(self.moments)
        (self.directory / "tokens.json").write_text(token_file())
        inbound = Inbound(authenticator=None, metrics=Metrics(None), tracing=Tracing("client"))
        for person in PEOPLE:
            self._networks[person.token] = MemoryNetwork(
                self.fabric, inbound, source="client", token=CallToken(person.token)
            )

    def replica_channel(self, name: str, person: Person = OPERATOR) -> grpc.aio.Channel:
        """A client's channel to a replica."""
        return self._networks[person.token].channel(f"{name}:1")

    async def stop(self, shutdown_seconds: float = 20.0) -> None:
        """Stops everything."""
        await VirtualPlatform.stop(self, shutdown_seconds)
        for network in self._networks.values():
            await network.close()

    def _build(self, name: str) -> App:
        true, self.clock = self.clock, self.clocks.setdefault(name, ShiftedClock(self.clock))
        try:
            return VirtualPlatform._build(self, name)
        finally:
            self.clock = true

    def _network(self, source: str) -> MakeNetwork:
        def make(inbound: Inbound, token: CallToken | None, options: NetworkOptions) -> MemoryNetwork:
            return TappedNetwork(self.fabric, inbound, source=source, token=token, options=options, tap=self.wiretap)

        return make

    def cut(self, name: str) -> bool:
        """A service loses its connection to the broker; False where it does not run."""
        if name not in self.apps:
            return False
        self._buses[name].cut()
        return True

    def mend(self) -> None:
        """All services reach the broker again."""
        for bus in self._buses.values():
            bus.heal()

    async def kill(self, name: str) -> None:
        """Ends a service like SIGKILL."""
        await kill(self, name, services=(*SERVICES, *REPLICAS[1:]))


@dataclass(slots=True)
class Nemesis:
    """Carries out the faults of one run.

    Attributes:
        counts: How often each fault happened.
        outages: When what was away.
        trace: Everything, for the digest of the run.
        killed: When a replica of the orchestrator was killed.
        switched: (off since, on again) of the kill switch; on again is infinite while it is off.
        policies: All policies that were in force.
        staged: The agents mostly work in their workspaces, so that is where accidents happen.
    """

    platform: Platform
    chance: random.Random
    kinds: frozenset[str]
    policies: list[Policy]
    staged: bool
    counts: Counter[str] = field(default_factory=Counter)
    outages: list[Outage] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)
    switched: list[tuple[float, float]] = field(default_factory=list)
    _stopped: asyncio.Lock = field(default_factory=asyncio.Lock)
    _switching: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Everything that goes wrong, then everything is whole again."""
        plan = self._plan()
        async with asyncio.TaskGroup() as group:
            for at, deed in plan:
                group.create_task(self._at(at, deed))
        self.heal()

    def heal(self) -> None:
        """Ends what is still going on."""
        self.platform.broker.come_up()
        self.platform.mend()
        for source, target in _LINKS:
            self.platform.fabric.heal(f"{target}:1", source=source)

    def _plan(self) -> list[tuple[float, Callable[[], Awaitable[None]]]]:
        chance = self.chance
        deeds: dict[str, Callable[[], Awaitable[None]]] = {
            "broker": self._broker_away,
            "network": self._network,
            "restart": self._restart,
            "crash": self._crash,
            "switch": self._switch,
            "policy": self._policy,
            "clock": self._clock,
        }
        plan = []
        for kind, deed in deeds.items():
            if kind in self.kinds:
                often = kind == "network" or (kind == "crash" and self.staged)
                times = chance.randint(1, 4) if often else chance.randint(1, 2)
                plan += [(chance.uniform(1.0, _HORIZON_SECONDS), deed) for _ in range(times)]
        return plan

    async def _at(self, seconds: float, deed: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(seconds)
        await deed()

    def _note(self, what: str) -> float:
        now = asyncio.get_running_loop().time()
        self.counts[what.partition(" ")[0]] += 1
        self.trace.append(f"{now!r} {what}")
        return now

    async def _broker_away(self) -> None:
        name = self.chance.choice(_STOPPABLE)
        if self.chance.random() < 0.5 and self.platform.cut(name):
            begin = self._note(f"cut-off {name}")
            await asyncio.sleep(self.chance.uniform(0.3, 12.0))
            self.platform.mend()
            self.outages.append(Outage("broker", begin, asyncio.get_running_loop().time()))
            return
        begin = self._note("broker-down")
        self.platform.broker.go_down()
        await asyncio.sleep(self.chance.uniform(0.3, 8.0))
        self.platform.broker.come_up()
        self.outages.append(Outage("broker", begin, asyncio.get_running_loop().time()))

    async def _network(self) -> None:
        kind = self.chance.choice(["drop", "drop", "refuse", "delay"])
        source, target = self.chance.choice(_LINKS)
        if kind == "drop" and target == "sandbox" and source in REPLICAS and self.chance.random() < self._amid_merges:
            source = await self._merge_of(source)
        fabric, address = self.platform.fabric, f"{target}:1"
        begin = self._note(f"{kind} {source}-{target}")
        if kind == "drop":
            fabric.drop(address, source=source)
        elif kind == "refuse":
            fabric.refuse(address, source=source)
            await asyncio.sleep(self.chance.uniform(0.3, 4.0))
            fabric.heal(address, source=source)
        else:
            fabric.delay(address, self.chance.uniform(0.02, 0.4), source=source)
            await asyncio.sleep(self.chance.uniform(2.0, 15.0))
            fabric.heal(address, source=source)
        self.outages.append(Outage(f"{source}-{target}", begin, asyncio.get_running_loop().time()))

    async def _restart(self) -> None:
        name = self.chance.choice(_STOPPABLE)
        async with self._stopped:
            begin = self._note(f"restart {name}")
            await self.platform.stop_service(name, _STOP_SECONDS)
            await self.start(name)
            self.outages.append(Outage(name, begin, asyncio.get_running_loop().time()))

    async def _crash(self) -> None:
        name = self.chance.choice(_STOPPABLE)
        if self.staged and self.chance.random() < 0.5:
            name = self.chance.choice(REPLICAS)
        async with self._stopped:
            name = await self._amid_work(name)
            begin = self._note(f"crash {name}")
            if name in REPLICAS:
                self.killed.append(begin)
            await self.platform.kill(name)
            await self.start(name)
            self.outages.append(Outage(name, begin, asyncio.get_running_loop().time()))

    async def _amid_work(self, name: str) -> str:
        """Waits for a moment, often one at which a process writes something, at any of its awaits; who is to die."""
        if name in ("sandbox", *REPLICAS) and self.chance.random() < self._amid_merges:
            return await self._merge_of(name)
        if self.chance.random() < 0.4:
            return name
        with suppress(TimeoutError):
            async with asyncio.timeout(_BUSY_SECONDS):
                await self.platform.moments.next(name)
        await self._some_turns()
        return name

    @property
    def _amid_merges(self) -> float:
        return 0.8 if self.staged else 0.2

    async def _merge_of(self, name: str) -> str:
        """Waits until a staged call takes effect; the replica whose commit it is, where a replica was meant."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_MERGE_SECONDS):
                moment = self.chance.choice([MERGE, COMMIT, COMMIT])
                whose = await self.platform.moments.next(moment)
                name = whose if whose and name in REPLICAS else name
                self.counts[f"fault amid a {moment}"] += 1
        await self._some_turns()
        return name

    async def _some_turns(self) -> None:
        for _ in range(self.chance.randrange(_TURNS)):
            await asyncio.sleep(0)

    async def _clock(self) -> None:
        """A process's wall clock jumps: by seconds as when it is corrected, by hours as when it was wrong."""
        name = self.chance.choice(_STOPPABLE)
        self._note(f"clock-jump {name}")
        most = self.chance.choice([0.5, 30.0, 7_200.0])
        self.platform.clocks[name].shift_seconds += self.chance.uniform(-most, most)

    async def start(self, name: str) -> None:
        """Starts a service as a supervisor does: again and again."""
        for _ in range(_RESTART_TRIES):
            await asyncio.sleep(self.chance.uniform(0.1, 2.0))
            try:
                await self.platform.start_service(name)
                return
            except ForerunError:
                self._note(f"start-failed {name}")
        raise AssertionError(f"{name} does not start any more")

    async def _switch(self) -> None:
        async with self._switching:
            await self._off_and_on()

    async def _off_and_on(self) -> None:
        stub = session_pb2_grpc.SessionServiceStub(self.platform.channel())
        if not await self._set(stub, on=False):
            return
        begin = self._note("switch-off")
        await asyncio.sleep(self.chance.uniform(1.0, 10.0))
        self.switched.append((begin, float("inf")))
        end = self._note("switch-on")
        # From the ask on it may be on, whatever the answer says.
        self.switched[-1] = (begin, end)
        await self._insist(stub)

    async def _insist(self, stub: session_pb2_grpc.SessionServiceStub) -> None:
        if not await self._set(stub, on=True):
            await asyncio.sleep(1.0)
            await self._insist(stub)

    @staticmethod
    async def _set(stub: session_pb2_grpc.SessionServiceStub, *, on: bool) -> bool:
        try:
            await stub.SetSpeculation(session_pb2.SetSpeculationRequest(on=on, reason="a person"), timeout=5.0)
        except Exception as error:  # any failure of a person's command: tried again
            assert type(error).__name__ == "AioRpcError", error
            return False
        return True

    async def _policy(self) -> None:
        policy = draw_policy(self.chance, first=False)
        self.policies.append(policy)
        now = self._note("policy")
        replace_file(self.platform.policy_file, policy.text, stamp_seconds=now)


def replace_file(path: Path, text: str, *, stamp_seconds: float) -> None:
    """Replaces a policy file at once; its time stamp follows virtual time, so that every change is seen as one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    stamp = 1_700_000_000_000_000_000 + int(stamp_seconds * 1e9)
    os.utime(fresh, ns=(stamp, stamp))
    fresh.replace(path)
