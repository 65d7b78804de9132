"""Every panel and every rule, asked of a real Prometheus that has scraped a real run whose outcomes are known."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from forerun.cli.demo.connection import ClientPlatform
from forerun.cli.demo.draws import Draws
from forerun.cli.demo.report import Progress
from forerun.cli.demo.runs import Counts
from forerun.cli.demo.show import Show, Size
from forerun.cli.demo.toolbench import Toolbench, toolbench
from forerun.cli.up import SERVICES, Platform
from forerun.client import AsyncClient
from tests.contract.test_dashboards import RULES, script
from tests.integration.monitoring.server import SCRAPE_SECONDS, Prometheus, prometheus

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed (Debian: prometheus)"),
]

DRAWS = Draws(1, 0.01)
FIRST = Size(research_warm_up=4, coding_warm_up=2, scored=2, concurrency=4)
KNOWN = Size(research_warm_up=0, coding_warm_up=0, scored=3, concurrency=4)
SLOTS = {"FORERUN_SANDBOX_AUTHORITATIVE_SLOTS": "20", "FORERUN_SANDBOX_SPECULATIVE_SLOTS": "8"}
HIT = ("ready", "joined")
# Only an operator on Kubernetes has pools.
CLUSTER_ONLY = frozenset({"Replicas", "Demand and slots for speculation", "Load is known"})


def asked(expression: str, seconds: float) -> str:
    """A panel's query as Grafana would ask it."""
    return expression.replace("$__range", f"{int(seconds)}s").replace("$__rate_interval", f"{int(seconds)}s")


def panel(dashboard: str, title: str) -> str:
    """The one query of a panel."""
    rows = script("dashboard_panels").DASHBOARDS[dashboard][1]
    (found,) = (one for row in rows for one in row.panels if one.title == title)
    (query,) = found.queries
    return str(query.expression)


async def play(platform: Platform, tools: Toolbench, size: Size) -> Counts:
    """Runs the demo's agents; what the platform told their clients, added up."""
    async with AsyncClient(platform.address, platform.token) as client:
        progress = partial(Progress, Console(stderr=True))
        shown = await Show(draws=DRAWS, size=size).run(
            ClientPlatform(client), log_file=tools.log_file, progress=progress
        )
    return sum((record.counts for records in shown.records.values() for record in records), Counts())


@asynccontextmanager
async def observed(tmp_path: Path) -> AsyncIterator[tuple[Platform, Toolbench, Prometheus]]:
    """A platform of real processes, and a Prometheus that scrapes all of them."""
    async with (
        toolbench(tmp_path / "tools", DRAWS) as tools,
        Platform(tmp_path / "platform", tools.policy_file, port=0, environment=SLOTS) as platform,
        prometheus(tmp_path / "prometheus", targets(platform), RULES) as asking,
    ):
        yield platform, tools, asking


def targets(platform: Platform) -> Mapping[str, str]:
    """Where the processes' metrics are."""
    run = json.loads(platform.directory.run_file.read_text())["services"]
    return {name: run[name]["metrics_address"] for name in SERVICES}


async def test_panels_tell_the_truth_of_a_run_and_no_query_fails(tmp_path: Path) -> None:
    async with observed(tmp_path) as (platform, tools, asking):
        await asking.scraped(2)
        await no_query_fails(asking, 5.0)
        # The first calls of each tool make its series; what comes after them is what rates can show.
        await play(platform, tools, FIRST)
        await asking.scraped(3)
        before = await asking.value("vector(time())")
        truth = await play(platform, tools, KNOWN)
        await asking.scraped(4)
        now = await asking.value("vector(time())")
        assert before is not None and now is not None
        # It begins in the quiet that three scrapes have seen, also where it is asked for a little later.
        seconds = math.ceil(now - before) + 2 * SCRAPE_SECONDS
        await totals_are_true(asking, truth, seconds)
        await ratios_are_true(asking, truth, seconds)
        empty = await no_query_fails(asking, seconds)
        assert empty >= CLUSTER_ONLY
        assert not empty & {
            "Hit rate",
            "Coverage",
            "Amplification",
            "Saved (estimated)",
            "Calls by answer",
            "Speculations by outcome",
            "Overhead of hits",
            "Queue wait of authoritative work",
            "Hit rate by tool",
            "Time of tools, p99",
            "Decisions of the governor",
            "Slots in use",
        }
        assert (
            await asking.instant('ALERTS{alertname=~"ForerunAuditDiverged|ForerunTaskFailed|ForerunTwoLeaders"}') == []
        )


async def totals_are_true(asking: Prometheus, truth: Counts, seconds: float) -> None:
    """Growth in the window, but for the extrapolation to its edges: less than a scrape on either side."""
    slack = 1.0 + 3.0 * SCRAPE_SECONDS / seconds
    outcomes = await asking.by(f"sum by (outcome) (increase(forerun_speculations_total[{int(seconds)}s]))", "outcome")
    assert truth.launched > 0
    for outcome, count in truth.outcomes.items():
        assert count - 0.5 <= outcomes[outcome] <= count * slack + 0.5, (outcome, outcomes, truth)
    served = await asking.value(f"sum(increase(forerun_authoritative_calls_total[{int(seconds)}s]))")
    assert served is not None
    assert truth.calls - 0.5 <= served <= truth.calls * slack + 0.5
    wasted = await asking.value(asked(panel("overview", "Wasted"), seconds))
    assert wasted is not None
    assert truth.wasted_seconds * 0.99 - 0.01 <= wasted <= truth.wasted_seconds * slack + 0.01


async def ratios_are_true(asking: Prometheus, truth: Counts, seconds: float) -> None:
    """Numerator and denominator are stretched alike, so ratios are exact but for what each edge cuts off."""
    hits = sum(truth.outcomes.get(one, 0) for one in HIT)
    hit_rate = await asking.value(asked(panel("overview", "Hit rate"), seconds))
    assert hit_rate == pytest.approx(hits / truth.launched, abs=0.02)
    coverage = await asking.value(asked(panel("overview", "Coverage"), seconds))
    assert coverage == pytest.approx(hits / truth.speculable_calls, abs=0.02)


async def no_query_fails(asking: Prometheus, seconds: float) -> set[str]:
    """Asks everything; the titles of panels that have nothing to show."""
    empty = set()
    for _, rows in script("dashboard_panels").DASHBOARDS.values():
        for one in (one for row in rows for one in row.panels):
            found = [await asking.instant(asked(query.expression, seconds)) for query in one.queries]
            if not any(found):
                empty.add(one.title)
    for alert in script("alert_rules").ALERTS:
        await asking.instant(alert.expression)
    return empty
