"""Whether tasks are a plan, before any of them runs. Every problem is named, with the task and the place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from forerun.core import limits
from forerun.core.canonical import CanonicalError, canonical
from forerun.core.errors import CoreError
from forerun.core.plan.model import PlanOptions, Task
from forerun.core.plan.references import ReferenceProblem, Template, compile_arguments

_ID = re.compile(r"[A-Za-z0-9_-]+\Z")
_SHOWN = 10
_EMPTY = Template((), {}, frozenset(), {})


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a plan.

    Attributes:
        reason: Stable word: `bad_id`, `duplicate_id`, `bad_tool`, `bad_arguments`, `bad_timeout`, `bad_reference`,
            `unknown_reference`, `self_reference`, `forward_reference`, `cycle`, `too_deep`, `too_many_tasks`,
            `too_many_references`.
        message: What is wrong and what to do; it names the tasks and the place.
        tasks: The tasks.
    """

    reason: str
    message: str
    tasks: tuple[str, ...]


class PlanError(CoreError):
    """A plan, or a further part of one, is refused. Nothing of it was taken.

    Attributes:
        reason: That of the first problem, or `closed`, `finished`, `too_many_replans`.
        problems: All of them.
    """

    def __init__(self, reason: str, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(reason, message)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Checked:
    """A task that can be placed.

    Attributes:
        task: The task.
        template: Its arguments, read.
        canonical: Their canonical text, with references unresolved.
        refers: Tasks whose results it needs.
        depth: Tasks on its longest chain of references, itself included.
    """

    task: Task
    template: Template
    canonical: bytes
    refers: tuple[str, ...]
    depth: int

    @property
    def as_sent(self) -> bytes | None:
        """The bytes that run where nothing in them is a reference or an escape; None where they must be written."""
        text = self.task.text
        return text if text is not None and (self.task.literal or b"$" not in text) else None


def check(
    tasks: Sequence[Task], options: PlanOptions, *, depths: Mapping[str, int] | None = None, references: int = 0
) -> list[Checked]:
    """Checks tasks that arrive together.

    Args:
        tasks: In call order.
        options: Bounds.
        depths: The tasks that are there already, with their depths.
        references: How many references they have.

    Raises:
        PlanError: With every problem; nothing may be run then.
    """
    there = depths or {}
    problems = list(_bounds(tasks, options, len(there)))
    if problems:
        raise refusal(problems)
    templates = [_template(task, problems) for task in tasks]
    position = {task.id: index for index, task in reversed(list(enumerate(tasks)))}
    problems.extend(_names(tasks, there, position))
    problems.extend(_targets(tasks, templates, there, position))
    total = references + sum(len(template.references) for template, _ in templates)
    if total > limits.PLAN_REFERENCES:
        text = f"{total} references in one plan, above PLAN_REFERENCES ({limits.PLAN_REFERENCES})"
        problems.append(Problem("too_many_references", text, (tasks[-1].id,)))
    checked = [] if problems else _deepened(tasks, templates, there, options, problems)
    if problems:
        raise refusal(problems)
    return checked


def refusal(problems: Sequence[Problem]) -> PlanError:
    """One error of many problems."""
    lines = [problem.message for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    return PlanError(problems[0].reason, "; ".join(lines), tuple(problems))


def _bounds(tasks: Sequence[Task], options: PlanOptions, there: int) -> Iterator[Problem]:
    if there + len(tasks) > options.tasks:
        first = tasks[options.tasks - there].id
        text = (
            f"{there + len(tasks)} tasks, and the plan may have {options.tasks} (PLAN_TASKS, or what its owner allows);"
            f" task {first} is the first one above"
        )
        yield Problem("too_many_tasks", text, (first, tasks[-1].id))


def _template(task: Task, problems: list[Problem]) -> tuple[Template, bytes]:
    try:
        text = canonical(dict(task.arguments))
        if len(text) > limits.ARGUMENTS_BYTES:
            raise CanonicalError("too_large", f"{len(text)} bytes, above ARGUMENTS_BYTES ({limits.ARGUMENTS_BYTES})")
        return compile_arguments(task.arguments, literal=task.literal), text
    except ReferenceProblem as error:
        message = f"task {task.id}, argument {error.place}: {error}"
        problems.append(Problem(error.reason, message, (task.id,)))
    except CanonicalError as error:
        problems.append(Problem("bad_arguments", f"task {task.id}: the arguments are refused: {error}", (task.id,)))
    return _EMPTY, b""


def _names(tasks: Sequence[Task], there: Mapping[str, int], position: Mapping[str, int]) -> Iterator[Problem]:
    for index, task in enumerate(tasks):
        if len(task.id) > limits.NAME_CHARS or not _ID.match(task.id):
            text = f"task {task.id[:40]!r}: an id has 1 to {limits.NAME_CHARS} letters, digits, _ and -"
            yield Problem("bad_id", text, (task.id[: limits.NAME_CHARS],))
        elif task.id in there or position[task.id] != index:
            yield Problem("duplicate_id", f"two tasks have the id {task.id}", (task.id,))
        if not 0 < len(task.tool) <= limits.NAME_CHARS:
            text = f"task {task.id}: the tool's name must have 1 to {limits.NAME_CHARS} characters (NAME_CHARS)"
            yield Problem("bad_tool", text, (task.id,))
        seconds = task.timeout_seconds
        if seconds is not None and not 0.0 < seconds <= limits.DEADLINE_MAX_SECONDS:
            most = f"{limits.DEADLINE_MAX_SECONDS:g} seconds (DEADLINE_MAX_SECONDS)"
            yield Problem("bad_timeout", f"task {task.id}: a timeout is above 0 and at most {most}", (task.id,))


def _targets(
    tasks: Sequence[Task],
    templates: Sequence[tuple[Template, bytes]],
    there: Mapping[str, int],
    position: Mapping[str, int],
) -> Iterator[Problem]:
    """References to tasks that are not there, or not yet."""
    forward: list[tuple[int, int, str]] = []
    for index, (task, (template, _)) in enumerate(zip(tasks, templates, strict=True)):
        named = [(one.task, f"argument {one.place}: {one.text}") for one in template.references]
        named += [(one, f"after: {one}") for one in task.after]
        for target, place in dict.fromkeys(named):
            if target in there:
                continue
            at = position.get(target)
            if at is None:
                text = f"task {task.id}, {place} names no task of the plan; $$ is a plain $"
                yield Problem("unknown_reference", text, (task.id, target))
            elif at == index:
                yield Problem("self_reference", f"task {task.id}, {place} names the task itself", (task.id,))
            elif at > index:
                forward.append((index, at, place))
    if not forward:
        return
    group = _cycles(tasks, templates, position)
    seen: set[int] = set()
    for index, at, place in forward:
        if group[index] != group[at]:
            text = f"task {tasks[index].id}, {place} names a later task; a task can need earlier ones only"
            yield Problem("forward_reference", text, (tasks[index].id, tasks[at].id))
        elif group[index] not in seen:
            seen.add(group[index])
            yield _cycle(tasks, templates, position, group, index)


def _edges(tasks: Sequence[Task], templates: Sequence[tuple[Template, bytes]], index: int) -> Iterable[str]:
    return dict.fromkeys([*(one.task for one in templates[index][0].references), *tasks[index].after])


def _cycles(
    tasks: Sequence[Task], templates: Sequence[tuple[Template, bytes]], position: Mapping[str, int]
) -> list[int]:
    """The strongly connected component of each task (Tarjan, without recursion)."""
    count = len(tasks)
    targets = [[position[one] for one in _edges(tasks, templates, index) if one in position] for index in range(count)]
    order, low, group = [-1] * count, [0] * count, [-1] * count
    path: list[int] = []
    numbered = 0
    for root in range(count):
        if order[root] >= 0:
            continue
        work = [(root, iter(targets[root]))]
        while work:
            node, rest = work[-1]
            if order[node] < 0:
                order[node] = low[node] = numbered
                numbered += 1
                path.append(node)
            below = next(rest, None)
            if below is not None:
                if order[below] < 0:
                    work.append((below, iter(targets[below])))
                elif group[below] < 0:
                    low[node] = min(low[node], order[below])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == order[node]:
                while group[node] < 0:
                    group[path.pop()] = node
    return group


def _cycle(
    tasks: Sequence[Task],
    templates: Sequence[tuple[Template, bytes]],
    position: Mapping[str, int],
    group: Sequence[int],
    start: int,
) -> Problem:
    """One way around, shortest first, so that the message can be followed."""
    came: dict[int, int] = {}
    level = [start]
    while level and start not in came:
        following: list[int] = []
        for node in level:
            for name in _edges(tasks, templates, node):
                at = position.get(name, -1)
                if at >= 0 and group[at] == group[start] and at not in came:
                    came[at] = node
                    following.append(at)
        level = following
    way = [start]
    while came[way[-1]] != start:
        way.append(came[way[-1]])
    names = [tasks[index].id for index in (start, *reversed(way))]
    shown = " -> ".join(names if len(names) <= _SHOWN else [*names[:_SHOWN], "...", names[-1]])
    return Problem("cycle", f"tasks that wait for each other: {shown}", tuple(names[:-1]))


def _deepened(
    tasks: Sequence[Task],
    templates: Sequence[tuple[Template, bytes]],
    there: Mapping[str, int],
    options: PlanOptions,
    problems: list[Problem],
) -> list[Checked]:
    depths: dict[str, int] = {}
    found: list[Checked] = []
    for task, (template, text) in zip(tasks, templates, strict=True):
        refers = tuple(dict.fromkeys(one.task for one in template.references))
        depth = 1 + max((depths.get(one) or there[one] for one in refers), default=0)
        if depth > options.depth and not problems:
            message = f"task {task.id} is number {depth} on a chain of references, above PLAN_DEPTH ({options.depth})"
            problems.append(Problem("too_deep", message, (task.id,)))
        depths[task.id] = depth
        found.append(Checked(task, template, text, refers, depth))
    return found
