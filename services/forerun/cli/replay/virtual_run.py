"""A replay under virtual time: every arm on a loop of its own, in which waiting costs nothing.

The platform arms run the production wiring of all services, in memory. What the way through real processes costs is
measured at the start (see `overhead`) and charged for each call.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from google.protobuf import json_format

from forerun.cli.replay.agent import SessionRun
from forerun.cli.replay.arms import REHEARSAL, Connect, DirectArm, Progress, run_arm
from forerun.cli.replay.foresight import Foreseen, Foresight
from forerun.cli.replay.platform_arm import Ledger, PlatformArm, PlatformRuns, train
from forerun.cli.replay.toolserver import ToolServer
from forerun.cli.replay.workload import Workload
from forerun.cli.virtual import SERVICES, TENANT, VirtualPlatform
from forerun.client import AsyncClient, Mode
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import run_virtual

# The tool server has no socket here. The address is loopback so that no name has to be resolved.
ADDRESS = "http://127.0.0.1:1"

# What a rehearsal owes to the ledger is written by then.
_OWED_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualReplay:
    """Runs arms of a workload under virtual time.

    Attributes:
        workload: What is replayed.
        tools: The tool server of all arms.
        seed: Decides ids and draws.
        charged_seconds: Charged for each call on the platform.
        at_once: Sessions that run at a time.
        progress: Told how far it is.
    """

    workload: Workload
    tools: ToolServer
    seed: int
    charged_seconds: float
    at_once: int
    progress: Progress

    def direct(self, arm: str, *, parallel: bool, planted: float = 0.0) -> list[SessionRun]:
        """An arm without the platform, whose sessions are longer by the planted share."""

        async def main(_clock: LoopClock, _ids: SeededIds) -> list[SessionRun]:
            async with httpx.AsyncClient(transport=self._transport(), base_url=ADDRESS) as client:
                return await self._run(arm, DirectArm(arm, client, parallel=parallel, planted=planted))

        return run_virtual(main, seed=self.seed)

    def forerun(self, arm: str, *, mode: Mode | None = None) -> PlatformRuns:
        """The arm with Forerun as it is, trained on the workload's training sessions."""
        return self._on_platform(arm, None, mode)

    def foreseen(self, arm: str, foreseen: Foreseen) -> PlatformRuns:
        """An arm whose predictor is replaced by one that is told the future."""
        return self._on_platform(arm, foreseen, None)

    def _on_platform(self, arm: str, foreseen: Foreseen | None, mode: Mode | None) -> PlatformRuns:
        with tempfile.TemporaryDirectory(prefix="forerun-replay-") as name:
            folder = Path(name)
            policies = json_format.MessageToDict(self.workload.policy_file(ADDRESS))
            (folder / "policies.yaml").write_text(json.dumps(policies))  # JSON is YAML

            async def main(clock: LoopClock, ids: SeededIds) -> PlatformRuns:
                platform = VirtualPlatform(
                    directory=folder,
                    policy_file=folder / "policies.yaml",
                    clock=clock,
                    ids=ids,
                    http=self._transport(),
                    # Nobody starts this predictor again: saving its models again and again would only take time.
                    settings={"predictor": {"save_seconds": 3_600.0}},
                )
                async with _started(platform, self._foresight(platform, arm, foreseen)):
                    if foreseen is not None and foreseen.rehearsed is not None:
                        await self._rehearse(platform)
                    return await self._sessions(platform, arm, foreseen is None, mode)

            return run_virtual(main, seed=self.seed)

    async def _sessions(self, platform: VirtualPlatform, arm: str, learns: bool, mode: Mode | None) -> PlatformRuns:
        ledger = Ledger(platform.bus)
        await ledger.start()
        trained_on = 0
        if learns and self.workload.training:
            trained_on = await train(
                platform.service_channel("predictor"),
                self.workload.training,
                self.workload.tools,
                tenant=TENANT,
                ids=platform.ids,
                ended_at=platform.clock.now(),
            )
        async with AsyncClient(channel=platform.channel(), ids=platform.ids) as client:
            connect = PlatformArm(arm, client, self.workload.tools, mode=mode, charged_seconds=self.charged_seconds)
            runs = await self._run(arm, connect)
        # What is owed to the ledger is written in order when the services stop.
        await platform.stop()
        await ledger.stop()
        return PlatformRuns(runs, connect.counts, tuple(ledger.lines), ledger.sites, trained_on)

    async def _rehearse(self, platform: VirtualPlatform) -> None:
        async with AsyncClient(channel=platform.channel(), ids=platform.ids) as client:
            await self._run(REHEARSAL, PlatformArm(REHEARSAL, client, self.workload.tools))
        await asyncio.sleep(_OWED_SECONDS)

    async def _run(self, arm: str, connect: Connect) -> list[SessionRun]:
        return await run_arm(arm, self.workload.recordings, connect, at_once=self.at_once, progress=self.progress)

    def _foresight(self, platform: VirtualPlatform, arm: str, foreseen: Foreseen | None) -> Foresight | None:
        if foreseen is None:
            return None
        return Foresight(platform.bus, foreseen.told(arm, self.workload.recordings))

    def _transport(self) -> httpx.AsyncBaseTransport:
        return httpx.ASGITransport(self.tools.app)


@asynccontextmanager
async def _started(platform: VirtualPlatform, foresight: Foresight | None) -> AsyncIterator[None]:
    """The platform's services; where somebody foresees, there is no predictor."""
    for name in SERVICES:
        if foresight is None or name != "predictor":
            await platform.start_service(name)
    if foresight is not None:
        await foresight.start()
    try:
        yield
    finally:
        if foresight is not None:
            await foresight.stop()
        await platform.stop()
