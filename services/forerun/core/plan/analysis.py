"""What a plan looks like before it runs: its waves, its longest chain, and what waits because of what it touches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forerun.core import limits
from forerun.core.contracts import Contract, Effect
from forerun.core.order import BatchCall, Plan
from forerun.core.plan.check import Checked, check
from forerun.core.plan.footprints import Ordering, ordering
from forerun.core.plan.model import PlanOptions, Task
from forerun.core.resources import ROOT, conflict


@dataclass(frozen=True, slots=True)
class Conflict:
    """A task that waits for an earlier one because of what both touch.

    Attributes:
        first: Index of the earlier task.
        second: Index of the later one.
        keys: Resource keys of the later one that meet; `*` where one of them runs alone.
    """

    first: int
    second: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One task of the plan.

    Attributes:
        task: The task.
        effect: What its tool does.
        known: A policy names its tool.
        alone: It runs alone.
        wave: 0 for tasks that may start at once, else one more than that of the latest task it waits for.
        refers: Indexes of tasks whose results it needs.
        waits: Indexes of all tasks that it waits for.
        same_as: Index of the equal task whose outcome it shares, or None.
    """

    task: Task
    effect: Effect
    known: bool
    alone: bool
    wave: int
    refers: tuple[int, ...]
    waits: tuple[int, ...]
    same_as: int | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """A plan before it runs.

    Attributes:
        steps: The tasks in call order.
        waves: Indexes of the tasks of each wave. Caps of tools and of the plan come on top.
        critical_path: Indexes of one longest chain.
        conflicts: What waits because of what it touches, and not because of a reference.
    """

    steps: tuple[Step, ...]
    waves: tuple[tuple[int, ...], ...]
    critical_path: tuple[int, ...]
    conflicts: tuple[Conflict, ...]


def analyse(
    tasks: Sequence[Task],
    contract_of: Callable[[str], Contract],
    options: PlanOptions | None = None,
    *,
    workspace_root: str | None = None,
    links: Mapping[str, str] | None = None,
) -> Analysis:
    """Checks a whole plan and says how it would run.

    Args:
        tasks: In call order.
        contract_of: See `PlanMachine`.
        options: Bounds.
        workspace_root: See `resources.footprint`.
        links: See `resources.footprint`.

    Raises:
        PlanError: It is no plan.
    """
    checked = check(tasks, options or PlanOptions())
    index = {one.task.id: number for number, one in enumerate(checked)}
    order = Plan(fan_in=limits.PLAN_TASKS_MAX)  # every pair by itself, without joins
    steps: list[Step] = []
    conflicts: list[Conflict] = []
    calls: list[BatchCall] = []
    for number, one in enumerate(checked):
        contract = contract_of(one.task.tool)
        ordered = ordering(one, contract, workspace_root=workspace_root, links=links)
        placement = order.place(ordered.call)
        calls.append(ordered.call)
        step = _step(one, contract, ordered, index, placement.predecessors, placement.same_as, steps)
        steps.append(step)
        others = sorted(placement.predecessors - set(step.refers))
        conflicts += [Conflict(first, number, _meeting(calls[first], ordered.call)) for first in others]
    return Analysis(tuple(steps), _waves(steps), _critical_path(steps), tuple(conflicts))


def _step(
    checked: Checked,
    contract: Contract,
    ordered: Ordering,
    index: Mapping[str, int],
    predecessors: frozenset[int],
    same_as: int | None,
    before: Sequence[Step],
) -> Step:
    refers = tuple(index[one] for one in checked.refers)
    waits = predecessors.union(refers, (index[one] for one in checked.task.after))
    wave = 1 + max((before[one].wave for one in waits), default=-1)
    return Step(
        task=checked.task,
        effect=contract.effect,
        known=contract.known,
        alone=ordered.call.barrier,
        wave=wave if same_as is None else before[same_as].wave,
        refers=refers,
        waits=tuple(sorted(waits)),
        same_as=same_as,
    )


def _meeting(first: BatchCall, second: BatchCall) -> tuple[str, ...]:
    if first.barrier or second.barrier:
        return (ROOT,)
    found = [key for key in second.writes if any(conflict(key, other) for other in (*first.reads, *first.writes))]
    found += [key for key in second.reads if any(conflict(key, other) for other in first.writes)]
    return tuple(dict.fromkeys(found))


def _waves(steps: Sequence[Step]) -> tuple[tuple[int, ...], ...]:
    waves: list[list[int]] = [[] for _ in range(1 + max((step.wave for step in steps), default=-1))]
    for number, step in enumerate(steps):
        waves[step.wave].append(number)
    return tuple(tuple(wave) for wave in waves)


def _critical_path(steps: Sequence[Step]) -> tuple[int, ...]:
    if not steps:
        return ()
    last = max(range(len(steps)), key=lambda number: (steps[number].wave, -number))
    path = [last]
    while steps[path[-1]].wave:
        here = steps[path[-1]]
        path.append(next(one for one in here.waits if steps[one].wave == here.wave - 1))
    return tuple(reversed(path))
