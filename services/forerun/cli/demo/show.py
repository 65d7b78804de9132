"""The demo from first to last: which tasks, in which order, and what comes out. It knows no platform, only the port."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from forerun.cli.demo.agents import coding, research
from forerun.cli.demo.agents.script import Script, Task
from forerun.cli.demo.draws import Draws
from forerun.cli.demo.library import Library, load_library
from forerun.cli.demo.runs import Platform, Progress, Run, Runner, SessionRecord
from forerun.cli.demo.tools.log import Execution, executions

# The scored runs come after the warm-up in this order: what the platform hears of a run's tasks can then help no run
# that is measured. Were a baseline first, the predictor would learn the very tasks that it is scored on.
_ORDER = (Run.FORERUN, Run.PARALLEL, Run.SEQUENTIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many sessions.

    Attributes:
        research_warm_up: Research sessions from which the platform learns, on tasks of their own.
        coding_warm_up: Coding sessions for the same; they recur more and need fewer.
        scored: Sessions of each agent in each run.
        concurrency: Sessions at once.
    """

    research_warm_up: int
    coding_warm_up: int
    scored: int
    concurrency: int


# In real time sessions mostly wait, so many run at once; not all, so that later sessions can learn from earlier ones.
# At a twentieth of the times the commands' own processor time counts: eight at once leave two cores room.
PLAIN = Size(research_warm_up=24, coding_warm_up=18, scored=12, concurrency=12)
FAST = Size(research_warm_up=24, coding_warm_up=18, scored=12, concurrency=8)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a demo did.

    Attributes:
        records: The sessions of each scored run.
        logged: What the tools recorded during the Forerun run.
    """

    records: Mapping[Run, Sequence[SessionRecord]]
    logged: Sequence[Execution]


class Show:
    """One demo: its tasks and the scripts that play them."""

    def __init__(self, *, draws: Draws, size: Size) -> None:
        self._draws = draws
        self._size = size
        self._library: Library = load_library()
        self._faults = coding.load_faults()
        research_tasks = research.tasks(self._library, draws.seed, size.research_warm_up + size.scored)
        coding_tasks = coding.tasks(self._faults, draws.seed, size.coding_warm_up + size.scored)
        self.warm_up = _mixed(research_tasks[: size.research_warm_up], coding_tasks[: size.coding_warm_up])
        self.scored = _mixed(research_tasks[size.research_warm_up :], coding_tasks[size.coding_warm_up :])

    async def run(self, platform: Platform, *, log_file: Path, progress: Progress) -> Shown:
        """Warms up and makes the three runs.

        Raises:
            ExceptionGroup: A session failed; the others were cancelled.
        """
        runner = Runner(
            platform=platform,
            draws=self._draws,
            script_of=self._script,
            tools_of={research.AGENT: research.TOOLS, coding.AGENT: coding.TOOLS}.__getitem__,
            concurrency=self._size.concurrency,
            progress=progress,
        )
        await runner.run(Run.WARM_UP, self.warm_up)
        _, before = executions(log_file, after_bytes=0)
        records: dict[Run, Sequence[SessionRecord]] = {}
        logged: list[Execution] = []
        for run in _ORDER:
            records[run] = await runner.run(run, self.scored)
            if run is Run.FORERUN:
                logged, _ = executions(log_file, after_bytes=before)
        return Shown(records, logged)

    def _script(self, task: Task) -> Script:
        if task.agent == research.AGENT:
            return research.script(task, self._draws.seed, self._library.documents[task.subject].kind)
        return coding.script(task, self._draws.seed, self._faults[task.subject])


def _mixed(one: Sequence[Task], other: Sequence[Task]) -> list[Task]:
    """Tasks of both agents in turn, so that both are at work all the time."""
    return [task for task in chain.from_iterable(zip_longest(one, other)) if task is not None]
