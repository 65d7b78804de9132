"""A replay in real time: the platform's real processes, a real broker, a real tool server on loopback.

The arms without the platform and the arm with Forerun run at the same time, so that whatever else the machine does
meets all of them; perfect prediction runs afterwards on a platform of its own, whose predictor hears nothing.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import httpx
from google.protobuf import json_format

from forerun.cli.replay.agent import SessionRun
from forerun.cli.replay.arms import PARALLEL, REHEARSAL, SEQUENTIAL, DirectArm, Progress, run_arm
from forerun.cli.replay.foresight import Foreseen, Foresight
from forerun.cli.replay.platform_arm import Ledger, PlatformArm, PlatformRuns, train
from forerun.cli.replay.scoring import Counts
from forerun.cli.replay.serving import served
from forerun.cli.replay.toolserver import ToolServer
from forerun.cli.replay.workload import Workload
from forerun.cli.up.directory import TENANT
from forerun.cli.up.layout import BROKER
from forerun.cli.up.platform import Platform
from forerun.client import AsyncClient, Mode
from forerun.runtime.bus import Bus
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds

_CONNECT_SECONDS = 10.0
_ADMIN = "admin"
# The last lines of the last sessions are on their way when the sessions have ended.
_LEDGER_SECONDS = 1.0
_NO_PARTITION = json.dumps([4_095])


@dataclass(frozen=True, slots=True)
class RealRuns:
    """What the arms that ran at the same time gave."""

    sequential: Sequence[SessionRun]
    parallel: Sequence[SessionRun]
    forerun: PlatformRuns | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RealReplay:
    """Runs arms of a workload in real time.

    Attributes:
        workload: What is replayed.
        tools: The tool server of all arms.
        at_once: Sessions of an arm that run at a time.
        progress: Told how far it is.
    """

    workload: Workload
    tools: ToolServer
    at_once: int
    progress: Progress

    async def together(self, arm: str, *, mode: Mode | None = None, foreseen: Foreseen | None = None) -> RealRuns:
        """Sequential, ordered parallel and an arm on the platform, at the same time."""
        async with (
            served(self.tools.app) as address,
            httpx.AsyncClient(base_url=address, timeout=None) as client,
            self.platform(address, listens=foreseen is None) as platform,
        ):
            trained_on = 0 if foreseen is not None else await self.train(platform)
            async with asyncio.TaskGroup() as tasks:
                sequential = tasks.create_task(self._direct(SEQUENTIAL, client, parallel=False))
                parallel = tasks.create_task(self._direct(PARALLEL, client, parallel=True))
                forerun = tasks.create_task(self._on_platform(platform, arm, mode, foreseen, trained_on))
        return RealRuns(sequential.result(), parallel.result(), forerun.result())

    async def without(self, second: str, planted: float = 0.0) -> tuple[RealRuns, Sequence[SessionRun]]:
        """Sequential and ordered parallel, and ordered parallel a second time, without any platform.

        The sessions of the second time are longer by the planted share.
        """
        async with (
            served(self.tools.app) as address,
            httpx.AsyncClient(base_url=address, timeout=None) as client,
            asyncio.TaskGroup() as tasks,
        ):
            sequential = tasks.create_task(self._direct(SEQUENTIAL, client, parallel=False))
            parallel = tasks.create_task(self._direct(PARALLEL, client, parallel=True))
            again = tasks.create_task(self._direct(second, client, parallel=True, planted=planted))
        return RealRuns(sequential.result(), parallel.result(), None), again.result()

    async def foreseen(self, arm: str, foreseen: Foreseen) -> PlatformRuns:
        """An arm whose predictor is replaced by one that is told the future."""
        async with (
            served(self.tools.app) as address,
            self.platform(address, listens=False) as platform,
        ):
            return await self._on_platform(platform, arm, None, foreseen)

    async def _direct(
        self, arm: str, client: httpx.AsyncClient, *, parallel: bool, planted: float = 0.0
    ) -> list[SessionRun]:
        return await run_arm(
            arm,
            self.workload.recordings,
            DirectArm(arm, client, parallel=parallel, planted=planted),
            at_once=self.at_once,
            progress=self.progress,
        )

    async def _on_platform(
        self, platform: Platform, arm: str, mode: Mode | None, foreseen: Foreseen | None, trained_on: int = 0
    ) -> PlatformRuns:
        async with _bus(platform) as bus, AsyncClient(platform.address, platform.token) as client:
            if foreseen is not None:
                await Foresight(bus, foreseen.told(arm, self.workload.recordings)).start()
                if foreseen.rehearsed is not None:
                    await self.sessions(client, REHEARSAL)
                    await asyncio.sleep(_LEDGER_SECONDS)
            ledger = Ledger(bus)
            await ledger.start()
            runs, counts = await self.sessions(client, arm, mode)
            await asyncio.sleep(_LEDGER_SECONDS)
            await ledger.stop()
        return PlatformRuns(runs, counts, tuple(ledger.lines), ledger.sites, trained_on)

    async def sessions(
        self, client: AsyncClient, arm: str, mode: Mode | None = None
    ) -> tuple[Sequence[SessionRun], Counts]:
        """All sessions once, on a platform that runs."""
        connect = PlatformArm(arm, client, self.workload.tools, mode=mode)
        runs = await run_arm(arm, self.workload.recordings, connect, at_once=self.at_once, progress=self.progress)
        return runs, connect.counts

    async def train(self, platform: Platform) -> int:
        """Lets the predictor learn; from how many sessions."""
        if not self.workload.training:
            return 0
        clock = SystemClock()
        async with grpc.aio.insecure_channel(platform.address_of("predictor")) as channel:
            return await train(
                channel,
                self.workload.training,
                self.workload.tools,
                tenant=TENANT,
                ids=SystemIds(clock),
                ended_at=clock.now(),
                token=platform.token,
            )

    @asynccontextmanager
    async def platform(self, address: str, *, listens: bool = True) -> AsyncIterator[Platform]:
        """The processes, with slots for all sessions at once.

        Args:
            address: Of the tool server.
            listens: The predictor hears what happens.
        """
        with tempfile.TemporaryDirectory(prefix="forerun-replay-") as name:
            policy_file = Path(name) / "policies.yaml"
            policies = json_format.MessageToDict(self.workload.policy_file(address))
            policy_file.write_text(json.dumps(policies))  # JSON is YAML
            platform = Platform(
                Path(name) / "data", policy_file, port=0, environment=_settings(self.at_once, listens=listens)
            )
            async with platform:
                yield platform


def _settings(at_once: int, *, listens: bool) -> Mapping[str, str]:
    """Slots for all sessions at once; a predictor that must not speak gets a partition that nobody has."""
    settings = {
        "FORERUN_SANDBOX_AUTHORITATIVE_SLOTS": str(max(8, 4 * at_once)),
        "FORERUN_SANDBOX_SPECULATIVE_SLOTS": str(max(4, 4 * at_once)),
    }
    return settings if listens else settings | {"FORERUN_PREDICTOR_PARTITIONS": _NO_PARTITION}


@asynccontextmanager
async def _bus(platform: Platform) -> AsyncIterator[Bus]:
    """The platform's broker, as the command line's user."""
    clock = SystemClock()
    password = platform.directory.password_file(_ADMIN).read_text().strip()
    bus = await NatsBus.connect(
        NatsOptions(servers=(platform.address_of(BROKER),), user=_ADMIN, password=password),
        clock=clock,
        ids=SystemIds(clock),
        timeout_seconds=_CONNECT_SECONDS,
    )
    try:
        yield bus
    finally:
        await bus.close(1.0)
