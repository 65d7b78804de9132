"""The demo as a whole: what is learned from and what is scored are different tasks, and the order helps no baseline."""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from forerun.cli.demo.draws import Draws
from forerun.cli.demo.runs import Progress, Run
from forerun.cli.demo.show import FAST, PLAIN, Show, Size, interleaved
from forerun.runtime.virtual import run_virtual
from tests.unit.demo.test_runs import PlatformDouble, SessionDouble


class LoggingPlatform(PlatformDouble):
    """Writes one line to the tools' log for each opened session."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log
        self.labels: list[str] = []

    @contextlib.asynccontextmanager
    async def session(
        self, label: str, *, agent: str, tools: Sequence[str], speculate: bool
    ) -> AsyncIterator[SessionDouble]:
        self.labels.append(label)
        with self._log.open("a") as log:
            log.write(json.dumps({"session": label, "tool": "search"}) + "\n")
        async with super().session(label, agent=agent, tools=tools, speculate=speculate) as session:
            yield session


@pytest.mark.parametrize("size", [PLAIN, FAST])
@pytest.mark.parametrize("seed", range(4))
def test_no_scored_task_is_learned_from(size: Size, seed: int) -> None:
    show = Show(draws=Draws(seed, 1.0), size=size)
    learned = {task.subject for task in show.warm_up}
    scored = {task.subject for task in show.scored}
    assert len(scored) == 2 * size.scored
    assert not learned & scored


def test_every_task_is_in_every_run_side_by_side_and_no_run_is_always_first() -> None:
    tasks = Show(draws=Draws(1, 1.0), size=FAST).scored
    planned = interleaved(tasks)
    runs = (Run.FORERUN, Run.PARALLEL, Run.SEQUENTIAL)
    assert Counter((run, task.session) for run, task in planned) == Counter(
        (run, task.session) for task in tasks for run in runs
    )
    assert [task for _, task in planned[::3]] == tasks
    first = Counter(run for run, _ in planned[::3])
    assert max(first.values()) - min(first.values()) <= 1


def test_the_warm_up_is_not_scored_and_its_executions_are_not_counted(tmp_path: Path) -> None:
    platform = LoggingPlatform(tmp_path / "log")
    size = Size(research_warm_up=2, coding_warm_up=0, scored=3, concurrency=2)
    show = Show(draws=Draws(1, 1.0), size=size)
    show.scored = [task for task in show.scored if task.agent == "research"]
    phases: list[tuple[str, int, int]] = []

    def progress(phase: str) -> Progress:
        return lambda ended, total: phases.append((phase, ended, total))

    shown = run_virtual(lambda clock, ids: show.run(platform, log_file=tmp_path / "log", progress=progress))
    assert [label.rpartition(".")[0] for label in platform.labels[:2]] == ["warm-up", "warm-up"]
    assert shown.logged is not None
    assert sorted(one.session for one in shown.logged) == sorted(platform.labels[2:])
    sessions = {run: [record.task for record in records] for run, records in shown.records.items()}
    assert sessions == dict.fromkeys((Run.FORERUN, Run.PARALLEL, Run.SEQUENTIAL), show.scored)
    assert [(ended, total) for _, ended, total in phases] == [(1, 2), (2, 2), *((n, 9) for n in range(1, 10))]
