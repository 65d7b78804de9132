"""The demo from first to last: which tasks, in which order, and what comes out. It knows no platform, only the port."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from forerun.cli.demo.agents import coding, research
from forerun.cli.demo.agents.script import Script, Task
from forerun.cli.demo.draws import Draws
from forerun.cli.demo.library import Library, load_library
from forerun.cli.demo.runs import Platform, Progress, Run, Runner, SessionRecord
from forerun.cli.demo.tools.log import Execution, executions

_SCORED = (Run.FORERUN, Run.PARALLEL, Run.SEQUENTIAL)


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
PLAIN = Size(research_warm_up=14, coding_warm_up=12, scored=12, concurrency=12)
FAST = Size(research_warm_up=12, coding_warm_up=8, scored=10, concurrency=8)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a demo did.

    Attributes:
        records: The sessions of each scored run.
        logged: What the tools recorded during the scored runs; None where their record is out of reach.
    """

    records: Mapping[Run, Sequence[SessionRecord]]
    logged: Sequence[Execution] | None


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

    async def run(self, platform: Platform, *, log_file: Path | None, progress: Callable[[str], Progress]) -> Shown:
        """Warms up and makes the three runs.

        Args:
            platform: Where tools are called.
            log_file: Where the tools record their executions; None where that is out of reach.
            progress: Gives, for the name of a phase, what is told of its progress.

        Raises:
            ExceptionGroup: A session failed; the others were cancelled.
        """
        warming = self._runner(platform, progress("warm-up on other tasks"))
        await warming.run([(Run.WARM_UP, task) for task in self.warm_up])
        before = 0 if log_file is None else executions(log_file, after_bytes=0)[1]
        scoring = self._runner(platform, progress("Forerun and the two baselines"))
        records = await scoring.run(interleaved(self.scored))
        logged = None if log_file is None else executions(log_file, after_bytes=before)[0]
        return Shown({run: [one for one in records if one.run is run] for run in _SCORED}, logged)

    def _runner(self, platform: Platform, progress: Progress) -> Runner:
        return Runner(
            platform=platform,
            draws=self._draws,
            script_of=self._script,
            tools_of={research.AGENT: research.TOOLS, coding.AGENT: coding.TOOLS}.__getitem__,
            concurrency=self._size.concurrency,
            progress=progress,
        )

    def _script(self, task: Task) -> Script:
        if task.agent == research.AGENT:
            return research.script(task, self._draws.seed, self._library.documents[task.subject].kind)
        return coding.script(task, self._draws.seed, self._faults[task.subject])


def interleaved(tasks: Sequence[Task]) -> list[tuple[Run, Task]]:
    """Every task in each of the scored runs, one beside the other, each run first in turn."""
    return [
        (_SCORED[(number + place) % len(_SCORED)], task)
        for number, task in enumerate(tasks)
        for place in range(len(_SCORED))
    ]


def _mixed(one: Sequence[Task], other: Sequence[Task]) -> list[Task]:
    """Tasks of both agents in turn, so that both are at work all the time."""
    return [task for task in chain.from_iterable(zip_longest(one, other)) if task is not None]
