"""A small demo on real processes: its own platform, and one that runs already."""

from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from forerun.cli.demo.connection import ClientPlatform
from forerun.cli.demo.draws import Draws
from forerun.cli.demo.figures import figures
from forerun.cli.demo.host import own_platform, running_platform
from forerun.cli.demo.report import Progress
from forerun.cli.demo.runs import Run
from forerun.cli.demo.show import Show, Size
from forerun.cli.demo.toolbench import toolbench
from forerun.cli.up import Platform
from forerun.runtime.errors import ErrorReason, FailedPrecondition

DRAWS = Draws(1, 0.01)
SIZE = Size(research_warm_up=4, coding_warm_up=2, scored=2, concurrency=4)


@pytest.mark.timeout(240)
async def test_a_small_demo_saves_nothing_wrong(tmp_path: Path) -> None:
    async with (
        toolbench(tmp_path / "tools", DRAWS) as tools,
        own_platform(tmp_path / "platform", tools, concurrency=SIZE.concurrency) as host,
    ):
        show = Show(draws=DRAWS, size=SIZE)
        progress = partial(Progress, Console(stderr=True))
        shown = await show.run(ClientPlatform(host.client), log_file=tools.log_file, progress=progress)
        made = figures(shown.records, shown.logged, await host.surroundings())
    assert (made.diverged, made.unknown, made.surroundings.restarts) == (0, 0, 0)
    assert made.surroundings.isolation in ("bubblewrap", "process", "gvisor")
    assert made.sessions == 4
    assert made.counts.launched > 0
    assert sum(made.counts.outcomes.values()) == made.counts.launched
    # What the tools themselves counted agrees with what the platform says of the same sessions.
    assert made.executions == made.counts.executions
    baselines = [record for run in (Run.PARALLEL, Run.SEQUENTIAL) for record in shown.records[run]]
    assert not any(record.counts.launched or record.counts.memo_hits for record in baselines)


@pytest.mark.timeout(240)
async def test_a_running_platform_follows_the_policy_file_of_a_later_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with toolbench(tmp_path / "tools", DRAWS) as first:
        policy_file = first.policy_file
    monkeypatch.setenv("FORERUN_DATA", str(tmp_path / "platform"))
    async with (
        Platform(tmp_path / "platform", policy_file, port=0) as platform,
        toolbench(tmp_path / "tools", DRAWS) as tools,
        running_platform(platform.address, tools) as host,
    ):
        names = {tool.name for tool in await host.client.list_tools("research")}
        surroundings = await host.surroundings()
    assert {"search", "lookup_entity", "run_tests"} <= names
    assert (surroundings.isolation, surroundings.restarts) == (None, None)


@pytest.mark.timeout(240)
async def test_a_platform_without_the_demos_tools_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_DATA", str(tmp_path / "platform"))
    async with Platform(tmp_path / "platform", port=0) as platform, toolbench(tmp_path / "tools", DRAWS) as tools:
        with pytest.raises(FailedPrecondition, match="forerun up --policy") as refused:
            async with running_platform(platform.address, tools):
                pass
    assert refused.value.reason is ErrorReason.DEPENDENCY_MISSING
