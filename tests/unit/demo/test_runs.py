"""The runner: one session after the other or side by side, the same tasks in every run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from forerun.cli.demo.agents import research
from forerun.cli.demo.agents.script import Call, Script, Task
from forerun.cli.demo.draws import Draws
from forerun.cli.demo.figures import diverged
from forerun.cli.demo.runs import Answer, Counts, Run, Runner, Served
from forerun.runtime.virtual import run_virtual
from tests.unit.demo.desk_double import LIBRARY, DeskDouble

SEED = 1
TASKS = research.tasks(LIBRARY, SEED, 6)
CALL_SECONDS = 2.0


class SessionDouble:
    """Answers from the double, two seconds a message; records what it was told."""

    def __init__(self, told: list[tuple[str, ...]]) -> None:
        self._desk = DeskDouble()
        self._told = told

    async def user_turn(self, text: str) -> None:
        self._told.append(("user", text))

    async def model_started(self) -> None:
        self._told.append(("model",))

    async def message(self, text: str) -> None:
        self._told.append(("message", text))

    async def call(self, calls: Sequence[Call]) -> Sequence[Answer]:
        self._told.append(("calls", *(call.tool for call in calls)))
        await asyncio.sleep(CALL_SECONDS)
        return [Answer(self._desk.answer(call), Served.DIRECT, CALL_SECONDS, CALL_SECONDS) for call in calls]

    async def end(self) -> Counts:
        return Counts(calls=sum(len(entry) - 1 for entry in self._told if entry[0] == "calls"))


class PlatformDouble:
    """Opens sessions and remembers how."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[str, ...]]] = {}
        self.modes: dict[str, tuple[str, bool]] = {}
        self.open = 0
        self.most_open = 0

    @contextlib.asynccontextmanager
    async def session(
        self, label: str, *, agent: str, tools: Sequence[str], speculate: bool
    ) -> AsyncIterator[SessionDouble]:
        assert tools == research.TOOLS
        self.modes[label] = (agent, speculate)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        yield SessionDouble(self.told.setdefault(label, []))
        self.open -= 1


def runner(platform: PlatformDouble, concurrency: int = 3) -> tuple[Runner, list[tuple[int, int]]]:
    progress: list[tuple[int, int]] = []

    def script_of(task: Task) -> Script:
        return research.script(task, SEED, LIBRARY.documents[task.subject].kind)

    made = Runner(
        platform=platform,
        draws=Draws(SEED, 1.0),
        script_of=script_of,
        tools_of=lambda agent: research.TOOLS,
        concurrency=concurrency,
        progress=lambda ended, total: progress.append((ended, total)),
    )
    return made, progress


def test_sequential_asks_for_one_call_at_a_time_and_sees_the_same() -> None:
    platform = PlatformDouble()
    made, _ = runner(platform)
    parallel = run_virtual(lambda clock, ids: made.run([(Run.PARALLEL, task) for task in TASKS]))
    sequential = run_virtual(lambda clock, ids: made.run([(Run.SEQUENTIAL, task) for task in TASKS]))
    for task in TASKS:
        alone = [entry for entry in platform.told[f"sequential.{task.session}"] if entry[0] == "calls"]
        together = [entry for entry in platform.told[f"parallel.{task.session}"] if entry[0] == "calls"]
        assert {len(entry) for entry in alone} == {2}
        assert [tool for entry in alone for tool in entry[1:]] == [tool for entry in together for tool in entry[1:]]
    assert diverged(sequential, parallel) == 0


def test_only_the_warm_up_and_forerun_may_run_ahead_and_baselines_teach_another_agent() -> None:
    platform = PlatformDouble()
    made, _ = runner(platform)
    run_virtual(lambda clock, ids: made.run([(run, TASKS[0]) for run in Run]))
    assert platform.modes == {
        "warm-up.R01": ("research", True),
        "forerun.R01": ("research", True),
        "parallel.R01": ("research-baseline", False),
        "sequential.R01": ("research-baseline", False),
    }


def test_a_session_takes_its_drawn_model_times_and_its_tools() -> None:
    platform = PlatformDouble()
    made, _ = runner(platform)
    (record,) = run_virtual(lambda clock, ids: made.run([(Run.PARALLEL, TASKS[0])]))
    draws = Draws(SEED, 1.0)
    steps = range(1, len(record.steps) + 1)
    expected = [draws.model_seconds(record.task.model, record.task.session, step) for step in steps]
    assert [round(step.model_seconds, 6) for step in record.steps] == [round(seconds, 6) for seconds in expected]
    assert abs(record.seconds - sum(expected) - CALL_SECONDS * len(record.steps)) < 1e-6
    assert platform.told["parallel.R01"][:2] == [("user", record.task.user_text), ("model",)]


def test_concurrency_is_bounded_and_records_keep_the_order_of_the_tasks() -> None:
    platform = PlatformDouble()
    made, progress = runner(platform, concurrency=3)
    records = run_virtual(lambda clock, ids: made.run([(Run.FORERUN, task) for task in TASKS]))
    assert platform.most_open == 3
    assert [record.task for record in records] == TASKS
    assert progress == [(ended, 6) for ended in range(1, 7)]
