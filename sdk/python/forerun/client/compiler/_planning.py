"""The tasks of one plan, from the text of the planner to the executor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.client._exact import spelled
from forerun.client._plan import PlanTask
from forerun.client._references import ReferenceProblem, renamed, targets
from forerun.client._results import Failure, ToolInfo
from forerun.client.compiler._plan_text import PlannedCall, PlanProblem, PlanReader
from forerun.client.compiler._repeats import FinishedWrites
from forerun.client.compiler._requests import Unusable
from forerun.client.compiler._results import Bounds

_NAMES_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Ready:
    """A task that is complete.

    Attributes:
        task: For the executor; with references to tasks that run.
        same_as: The finished task whose result it gets instead of running, or empty.
    """

    task: PlanTask
    same_as: str


@dataclass(slots=True)
class Numbers:
    """The tasks of a run, over all its plans.

    Attributes:
        last: Highest number so far.
        count: How many tasks there are.
        kept: Tasks that get the result of an earlier one.
        ids: Every task that may be referred to.
    """

    last: int = 0
    count: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)


class PlanIntake:
    """Takes the text of one plan and gives its tasks. Refuses what cannot run, before it is run.

    Args:
        tools: What may be called, by name.
        numbers: Of the run; shared by its plans.
        writes: Finished writes of the run.
        bounds: Of the run.
    """

    def __init__(self, tools: Mapping[str, ToolInfo], numbers: Numbers, writes: FinishedWrites, bounds: Bounds) -> None:
        self._tools = tools
        self._numbers = numbers
        self._writes = writes
        self._bounds = bounds
        self._reader = self._new_reader()
        self._thoughts = 0
        self.tasks: list[Ready] = []
        """The tasks so far."""

    def restart(self) -> bool:
        """Drops the text so far. False where tasks of it went to the executor already."""
        if self.tasks:
            return False
        self._reader, self._thoughts = self._new_reader(), 0
        return True

    def feed(self, text: str) -> Iterator[Ready]:
        """Takes the next characters; the tasks that are complete by them, one after the other.

        Raises:
            Unusable: it is no plan. Tasks before that are part of it.
        """
        return self._taken(lambda: self._reader.feed(text))

    def finish(self) -> Iterator[Ready]:
        """No more will arrive; the last tasks.

        Raises:
            Unusable: it is no plan, or cut off.
        """
        return self._taken(self._reader.finish)

    def new_thoughts(self) -> list[str]:
        """What the planner thought since this was asked last."""
        found, self._thoughts = self._reader.thoughts[self._thoughts :], len(self._reader.thoughts)
        return found

    def _new_reader(self) -> PlanReader:
        return PlanReader(self._parameters, after=self._numbers.last, most_chars=self._bounds.plan_chars)

    def _taken(self, read: Callable[[], Sequence[PlannedCall]]) -> Iterator[Ready]:
        try:
            for call in read():
                ready = self._ready(call)
                self.tasks.append(ready)
                yield ready
        except PlanProblem as problem:
            raise Unusable(_failure(problem.reason, str(problem))) from problem

    def _ready(self, call: PlannedCall) -> Ready:
        name, numbers = str(call.number), self._numbers
        if call.tool not in self._tools:
            raise self._unknown(call.tool)
        if numbers.count == self._bounds.tasks:
            raise Unusable(_failure("too_many_tasks", f"more than {self._bounds.tasks} tasks in all plans (tasks)"))
        try:
            named = targets(call.arguments)
        except ReferenceProblem as problem:
            raise Unusable(_failure(problem.reason, f"task {name}: {problem}")) from problem
        missing = next((one for one in named if one not in numbers.ids), None)
        if missing is not None:
            text = f"task {name} refers to ${missing}, and there is no such task before it; $$ is a plain $"
            raise Unusable(_failure("unknown_reference", text))
        arguments = renamed(call.arguments, numbers.kept)
        same_as = self._writes.planned(name, call.tool, arguments)
        numbers.last, numbers.count = call.number, numbers.count + 1
        numbers.ids.add(name)
        if same_as is not None:
            numbers.kept[name] = same_as
        return Ready(PlanTask(name, call.tool, spelled(arguments).decode("utf-8")), same_as or "")

    def _parameters(self, tool: str) -> Sequence[str] | None:
        """The names of a tool's parameters, in the order of its schema."""
        if tool not in self._tools:
            raise self._unknown(tool)
        try:
            schema: Any = json.loads(self._tools[tool].input_schema)
        except ValueError:
            schema = None
        properties = schema.get("properties") if isinstance(schema, dict) else None
        return tuple(properties) if isinstance(properties, dict) else None

    def _unknown(self, tool: str) -> PlanProblem:
        names = ", ".join(sorted(self._tools)[:_NAMES_SHOWN])
        text = f"line {self._reader.line} of the plan: there is no tool {tool[:60]!r}; there are {names or 'none'}"
        return PlanProblem("unknown_tool", text)


def _failure(reason: str, message: str) -> Failure:
    return Failure("PLAN_INVALID", message, {"problem": reason})
