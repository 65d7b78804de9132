"""A real Prometheus that scrapes processes of a platform."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from forerun.cli.up import tether
from forerun.cli.up.ports import free_ports
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds

SCRAPE_SECONDS = 1


class Prometheus:
    """Asks it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def instant(self, query: str) -> list[dict[str, Any]]:
        """The series of a query, now."""
        return await self._ask("query", {"query": query})

    async def between(self, query: str, began: float, ended: float, step_seconds: float) -> list[dict[str, Any]]:
        """The series of a query over time."""
        window = {"query": query, "start": str(began), "end": str(ended), "step": f"{step_seconds:.3f}"}
        return await self._ask("query_range", window)

    async def value(self, query: str) -> float | None:
        """The one value of a query; None where it gives no series."""
        series = await self.instant(query)
        assert len(series) <= 1, f"{query} gives {len(series)} series"
        return float(series[0]["value"][1]) if series else None

    async def by(self, query: str, label: str) -> dict[str, float]:
        """The values of a query by a label."""
        return {one["metric"].get(label, ""): float(one["value"][1]) for one in await self.instant(query)}

    async def scrapes(self) -> float:
        """Scrapes of each target so far, of the one that has had fewest."""
        found = await self.value("min(count_over_time(up[1h]))")
        return 0.0 if found is None else found

    async def scraped(self, times: int) -> None:
        """Waits for further scrapes of every target."""
        wanted = await self.scrapes() + times
        async with asyncio.timeout(60):
            while await self.scrapes() < wanted:  # noqa: ASYNC110  (another process gives no event)
                await asyncio.sleep(0.2)

    async def _ask(self, path: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        answer = (await self._client.get(f"/api/v1/{path}", params=dict(parameters))).json()
        assert answer["status"] == "success", (parameters, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


@asynccontextmanager
async def prometheus(directory: Path, targets: Mapping[str, str], rules: Path) -> AsyncIterator[Prometheus]:
    """Runs one until the end of the block.

    Args:
        directory: For its data.
        targets: Address of each job.
        rules: Its alert rules.
    """
    config = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()
        ],
    }
    log_file = _prepared(directory, config)
    (port,) = free_ports(1, SystemIds(SystemClock()))
    with log_file.open("wb") as log:
        data = directory / "data"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, tether.__file__, str(os.getpid())),
            str(shutil.which("prometheus")),
            f"--config.file={directory / 'prometheus.json'}", f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20.0, trust_env=False) as client:
            await _until_ready(client)
            yield Prometheus(client)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _prepared(directory: Path, config: object) -> Path:
    """Writes the configuration; where the log will be."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "prometheus.json").write_text(json.dumps(config))
    return directory / "log"


async def _until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await client.get("/-/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
