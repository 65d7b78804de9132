"""A model server beside a platform, as a user starts both: cap, kill switch and erasures reach the models."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from forerun.cli.up.platform import Platform
from forerun.client import AsyncClient
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.topology import CAPACITY
from forerun.serving.server import Installation
from forerun.v1 import capacity_pb2
from tests.integration.serving.conftest import events, generate
from tests.triton.test_serve import Process, serve

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

POOL = "agents"
TENANT = "local"
TEXT = {"max_tokens": 200, "ignore_end": True, "depth": 7, "drafters": ["model"], "seed": 1, "tenant": TENANT}


@asynccontextmanager
async def model_server(data: Path, folder: Path) -> AsyncIterator[Process]:
    """The command `models serve` beside the platform of a data directory."""
    speculation = {"kind": "coupled", "drafters": ["recall", "model"], "history_folder": str(folder / "histories")}
    pair = {
        "target": {"kind": "toy"},
        "draft": {"kind": "toy", "agreement": 0.8},
        "slots": 4,
        "max_output_tokens": 4_000,
    }
    settings = {"name": "mine", **pair, "speculation": speculation}
    async with serve(folder, "--data", str(data), "--pool", POOL, "--name", "models", settings=settings) as process:
        yield process


async def forerun(data: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """A command of the command line beside the platform: its exit code and what it printed."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun.cli.main", *words,
        env={**os.environ, "FORERUN_DATA": str(data)}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, _ = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode is not None
    return child.returncode, json.loads(printed) if printed else {}


async def cap(platform: Platform, depth: int | None) -> None:
    """What the operator of a cluster decides; there is none on one machine."""
    clock = SystemClock()
    password = platform.directory.password_file("operator").read_text().strip()
    options = NatsOptions(servers=(platform.address_of("broker"),), user="operator", password=password)
    bus = await NatsBus.connect(options, clock=clock, ids=SystemIds(clock))
    try:
        content = capacity_pb2.PoolCapacity(pool=POOL, token_depth=depth).SerializeToString()
        await bus.kv(CAPACITY).put(POOL, content)
    finally:
        await bus.close(1.0)


async def until_depth(metrics: str, wanted: Callable[[str], bool]) -> None:
    """Waits until the metrics of the models are as wanted."""
    async with httpx.AsyncClient() as client, asyncio.timeout(30):
        while not wanted((await client.get(f"http://{metrics}/metrics")).text):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


async def test_the_cap_of_the_pool_and_the_kill_switch_reach_the_models(
    installation: Installation, tmp_path: Path
) -> None:
    async with Platform(tmp_path / "data", port=0) as platform, model_server(tmp_path / "data", tmp_path) as process:
        data = tmp_path / "data"
        free = [event["tokens"] async for event, _ in events(process.client, [5, 6, 7], TEXT)]
        assert max(map(len, free)) == 8
        await cap(platform, 2)
        await process.until_it_says("drafts are at most 2 tokens a pass (pool)")
        bounded = [event["tokens"] async for event, _ in events(process.client, [5, 6, 7], TEXT)]
        assert max(map(len, bounded)) == 3
        assert list(chain(*bounded)) == list(chain(*free))
        await until_depth(process.metrics, lambda text: 'forerun_draft_depth_ceiling_source{source="pool"} 1' in text)

        # The kill switch, while a text runs: nothing is drafted for it any more, which is no chance so often in a row.
        passes: list[int] = []
        async with (
            AsyncClient(platform.address, platform.token) as client,
            aclosing(events(process.client, [5, 6, 7], {**TEXT, "max_tokens": 3_900})) as stream,
        ):
            async for event, _ in stream:
                passes.append(len(event["tokens"]))
                if len(passes) == 1:
                    await client.set_speculation(on=False)
                if passes[-20:] == [1] * 20:
                    break
        assert passes[-20:] == [1] * 20
        await process.until_it_says("drafts are at most 0 tokens a pass (switch)")
        code, _ = await forerun(data, "on")
        assert code == 0
        await cap(platform, None)
        await process.until_it_says("drafts are as deep as the profile allows (profile)")
        again = [event["tokens"] async for event, _ in events(process.client, [5, 6, 7], TEXT)]
        assert again == free


async def test_a_tenant_is_erased_at_a_server_that_runs_and_at_one_that_comes_back(
    installation: Installation, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    options = {
        "max_tokens": 150, "ignore_end": True, "depth": 7, "drafters": ["recall"], "temperature": 1.0, "seed": 3,
        "agent": "one",
    }  # fmt: skip

    async def passes(process: Process, tenant: str = TENANT) -> int:
        answer = await generate(process.client, [8, 8, 8], {**options, "tenant": tenant})
        return int(answer.usage["passes"])

    async with Platform(data, port=0):
        async with model_server(data, tmp_path) as process:
            first = await passes(process)
            assert await passes(process) < first / 2
            assert await passes(process, "rival") == first
            code, found = await forerun(data, "models", "erase", "--tenant", TENANT, "--json")
            assert (code, found["done"]) == (0, True)
            (server,) = found["servers"]
            assert (server["name"], server["erased"], server["histories"]) == ("models", True, 2)
            assert server["tokens"] > 600
            assert await passes(process) == first, "nothing of it is left"
            assert await passes(process, "rival") < first / 2, "nobody else's is gone"
        # It has ended, and saved what it remembers.
        code, found = await forerun(data, "models", "erase", "--tenant", TENANT, "--json")
        assert (code, found["servers"]) == (0, []), "it took itself off the list"
        async with model_server(data, tmp_path) as process:
            assert await passes(process) == first, "erased before anything was read"
            assert await passes(process, "rival") < first / 2
            await process.until_it_says(f"tenant {TENANT} is erased: 0 histories of 0 tokens, 2 files")
        async with model_server(data, tmp_path) as process:
            assert await passes(process) < first / 2, "what was said after the erasure stays"
