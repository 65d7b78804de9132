"""The tasks of one plan: where each stands, who waits for whom, and what its end does to the others."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from forerun.core import limits
from forerun.core.canonical import JsonValue, canonical
from forerun.core.contracts import Contract
from forerun.core.errors import CoreError
from forerun.core.order import BatchCall, BatchOrder
from forerun.core.plan import causes
from forerun.core.plan.check import Checked, check
from forerun.core.plan.effects import CancelTask, PlanEffect, ShareTask, StartTask, TaskSettled
from forerun.core.plan.footprints import ordering
from forerun.core.plan.gate import Gate
from forerun.core.plan.model import (
    Cause,
    Early,
    FailurePolicy,
    PlanOptions,
    PlanStatus,
    Task,
    TaskResult,
    TaskStatus,
)
from forerun.core.plan.node import NEVER_STARTED, Node, Stage
from forerun.core.plan.values import Values

OUTCOMES = frozenset({TaskStatus.OK, TaskStatus.ERROR})
"""Ends that say what the tool does. Equal tasks share only these: after any other end, the next one would run."""


class Board:
    """All tasks of one plan, over all of its rounds.

    Attributes:
        now: The time of the input that is being taken.
        effects: What came of it so far.
        nodes: The tasks in call order.
        open: How many have no end yet.
        gate: Caps, and how many tasks run.
        complete: The round has arrived whole.
        stopped: Why nothing starts any more, and how the plan ends by that; or None.
        cut: The round was refused or cancelled, perhaps after a failure had stopped it: nothing more of it is to come.
        failed: A failure that the plan reports at its end, or None.
        round_start: Index of the first task of this round.
    """

    def __init__(
        self,
        contract_of: Callable[[str], Contract],
        options: PlanOptions,
        workspace_root: str | None,
        links: Mapping[str, str] | None,
        begun: Collection[int],
    ) -> None:
        self.now = 0.0
        self.effects: list[PlanEffect] = []
        self.nodes: list[Node] = []
        self.open = 0
        self.gate = Gate(options.in_flight)
        self.complete = False
        self.stopped: tuple[PlanStatus, Cause] | None = None
        self.cut = False
        self.failed: Cause | None = None
        self.round_start = 0
        self._contract_of = contract_of
        self._options = options
        self._workspace_root = workspace_root
        self._links = links
        self._begun = frozenset(begun)
        self._by_id: dict[str, int] = {}
        self._depths: dict[str, int] = {}
        self._references = 0
        self._order = BatchOrder(limit=2 * options.tasks)  # the caps are the gate's
        self._holders: list[int] = []  # whose end is the end of each position of the order
        self._values = Values(options.held_bytes, self._result_of)
        self._held: list[int] = []
        self._withheld: list[TaskResult] = []
        self._doomed: deque[tuple[int, Cause]] = deque()
        self._due: list[tuple[float, int]] = []

    def node(self, task: str) -> Node | None:
        """The task of that id."""
        index = self._by_id.get(task)
        return None if index is None else self.nodes[index]

    # ------------------------------------------------------------ places

    def check(self, tasks: Sequence[Task]) -> list[Checked]:
        """Checks tasks that arrive together against those that are there.

        Raises:
            PlanError: They are no plan.
        """
        return check(tasks, self._options, depths=self._depths, references=self._references)

    def place(self, checked: Checked, stored: TaskResult | None = None) -> None:
        """Gives a task its place; `stored` is its end, where it comes from a journal."""
        contract = self._contract_of(checked.task.tool)
        ordered = ordering(checked, contract, workspace_root=self._workspace_root, links=self._links)
        node = Node(index=len(self.nodes), checked=checked, ordering=ordered)
        self.nodes.append(node)
        self.open += 1
        self._by_id[node.id] = node.index
        self._depths[node.id] = checked.depth
        self._references += len(checked.template.references)
        needed = [self.nodes[self._by_id[one]] for one in checked.refers]
        before = [self.nodes[self._by_id[one]] for one in checked.task.after]
        known = self._position(node, ordered.call, [one.position for one in (*needed, *before)])
        for one in needed:
            one.dependents.append(node.index)
        if stored is not None:
            self._end(node, stored)
        elif self.stopped is not None and node.index in self._begun and known is not None:
            self.settle(node, node.sharing(known))
        elif self.stopped is not None and node.index in self._begun and node.stage is Stage.WAITING:
            self._stop_again(node, self.stopped[1])
        elif self.stopped is not None:
            self.settle(node, node.ended(TaskStatus.SKIPPED, self.now, cause=self.stopped[1]))
        elif (cause := _skipped(needed)) is not None:
            self.settle(node, node.ended(TaskStatus.SKIPPED, self.now, cause=cause))
        elif known is not None:
            self.settle(node, node.sharing(known))

    def _position(self, node: Node, call: BatchCall, after: Sequence[int]) -> TaskResult | None:
        """Places a task in the order of conflicts. Returns the outcome that it shares, where that is known already."""
        position = self._order.add(call, after=after)
        self._holders.append(node.index)
        leading = self._order.same_as(position)
        if leading is None:
            node.position = position
            return None
        leader = self.nodes[self._holders[leading]]
        if leader.index < self.round_start or (leader.result is not None and leader.result.status not in OUTCOMES):
            return self._position(node, replace(call, same=None), after)
        node.position, node.stage = leading, Stage.SHARING
        if leader.result is None:
            leader.sharers.append(node.index)
        return leader.result

    def interrupt(self, started: frozenset[str]) -> None:
        """Ends tasks that another owner started, and that may not be repeated."""
        for node in self.nodes:
            if node.result is None and node.id in started and not node.ordering.repeatable:
                cause = causes.interrupted(node.id)
                self._close(node, node.ended(TaskStatus.OUTCOME_UNKNOWN, self.now, cause=cause))

    # ------------------------------------------------------------ start and stop

    def advance(self) -> None:
        """Starts what may start, in a loop and not by recursion: hundreds may end at once."""
        while True:
            while self._doomed:
                index, cause = self._doomed.popleft()
                node = self.nodes[index]
                if node.stage in NEVER_STARTED:
                    self.settle(node, node.ended(TaskStatus.SKIPPED, self.now, cause=cause))
            if self.stopped is not None:
                return
            for position in self._order.ready():
                self._offer(self.nodes[self._holders[position]])
            following = self.gate.next()
            if following is None:
                return
            self._start(self.nodes[following])

    def _offer(self, node: Node) -> None:
        if self._options.early is Early.READS and not self.complete and not node.ordering.safe_read:
            node.stage = Stage.HELD
            self._held.append(node.index)
        else:
            node.stage = Stage.OFFERED
            self.gate.offer(node.index, node.tool, node.ordering.tool_limit)

    def _start(self, node: Node) -> None:
        node.stage = Stage.RUNNING
        try:
            arguments, value = self._arguments(node)
        except CoreError as error:
            cause = Cause(error.reason, f"task {node.id} cannot be started: {error}", task=node.id)
            self.settle(node, node.ended(TaskStatus.REJECTED, self.now, cause=cause))
            return
        node.started_at = self.now
        ordered = node.ordering
        self._wait_until(node, self.now + ordered.timeout_seconds)
        self.effects.append(
            StartTask(node.id, node.index, node.tool, arguments, value, ordered.timeout_seconds, ordered.repeatable)
        )

    def _arguments(self, node: Node) -> tuple[bytes, JsonValue]:
        """What a task runs with.

        Raises:
            CoreError: Nothing: a reference has no value, or they are too long.
        """
        value = node.checked.template.resolve(self._values.of)
        arguments = node.checked.as_sent or canonical(value)
        if len(arguments) > limits.ARGUMENTS_BYTES:
            bound = f"ARGUMENTS_BYTES ({limits.ARGUMENTS_BYTES})"
            raise CoreError("too_large", f"its arguments have {len(arguments)} bytes, above {bound}")
        return arguments, value

    def halt(self, node: Node, status: TaskStatus, cause: Cause) -> None:
        """Tells a running task to stop. Until it has, nothing that is in conflict with it starts."""
        node.stage = Stage.STOPPING
        node.stopping = (status, cause)
        self._wait_until(node, self.now + limits.CANCEL_SETTLE_SECONDS)
        self.effects.append(CancelTask(node.id, late=status is TaskStatus.TIMEOUT))

    def halted(self, node: Node, *, certain: bool, unsettled: bool = False) -> None:
        """A task that was told to stop has stopped, or was given up.

        What it may have done, and may not do twice, nobody knows; `certain`: it never reached the tool.
        """
        assert node.stopping is not None  # set with the stage
        status, cause = node.stopping
        if not certain and not node.ordering.repeatable:
            status, cause = TaskStatus.OUTCOME_UNKNOWN, causes.unknown(cause)
        self.settle(node, node.ended(status, self.now, cause=cause, unsettled=unsettled))

    def _stop_again(self, node: Node, cause: Cause) -> None:
        """The failure that has stopped this task when the plan was told for the first time is known before it now.

        It had begun: it is asked for its end and not said to have never run.
        """
        self.gate.enter(node.tool)
        self._start(node)
        if node.stage is Stage.RUNNING:
            self.halt(node, TaskStatus.CANCELLED, cause)

    def _wait_until(self, node: Node, due: float) -> None:
        node.due = due
        heapq.heappush(self._due, (due, node.index))

    def next_due(self) -> float | None:
        """When the next task is late, or has had its time to stop."""
        while self._due:
            due, index = self._due[0]
            node = self.nodes[index]
            if node.due == due and node.stage in {Stage.RUNNING, Stage.STOPPING}:
                return due
            heapq.heappop(self._due)
        return None

    def pop_due(self) -> Node | None:
        """The next task that is late by now, each once."""
        due = self.next_due()
        if due is None or due > self.now:
            return None
        return self.nodes[heapq.heappop(self._due)[1]]

    # ------------------------------------------------------------ the end of a task

    def settle(self, node: Node, result: TaskResult) -> None:
        """A task has its end: tells it, lets others go on, and lets the failure policy decide."""
        self._close(node, result)
        self.judge(node)

    def _close(self, node: Node, result: TaskResult) -> None:
        if self._options.early is Early.READS and not self.complete:
            self._withheld.append(result)
        else:
            self.effects.append(TaskSettled(result))
        self._end(node, result)
        if result.shared_with:
            self._share(node, self._by_id[result.shared_with])
        if result.status is not TaskStatus.OK:
            cause = causes.skipped(result)
            self._doomed.extend((index, cause) for index in node.dependents)

    def _share(self, node: Node, leader: int) -> None:
        with suppress(CoreError):  # spelled with more bytes than a call may have: then nobody can execute it either
            arguments, _ = self._arguments(node)
            self.effects.append(ShareTask(node.index, node.tool, arguments, leader))

    def _end(self, node: Node, result: TaskResult) -> None:
        was, node.stage = node.stage, Stage.DONE
        if was in {Stage.RUNNING, Stage.STOPPING}:
            self.gate.ended(node.tool)
        elif was is Stage.OFFERED and self.stopped is None:
            self.gate.withdraw(node.index, node.tool)
        node.result = self._values.hold(result)
        self.open -= 1
        if was is Stage.SHARING:
            return
        sharers = [self.nodes[index] for index in node.sharers if self.nodes[index].result is None]
        node.sharers = []
        if sharers and result.status not in OUTCOMES and self.stopped is None:
            self._inherit(node, was, sharers)
            return
        self._order.finished(node.position)
        if self.stopped is None:
            for sharer in sharers:
                self.settle(sharer, sharer.sharing(result))

    def _inherit(self, node: Node, was: Stage, sharers: list[Node]) -> None:
        """The task ended without an outcome. One of those that would have shared it runs in its place."""
        heir = sharers[0]
        heir.sharers = [sharer.index for sharer in sharers[1:]]
        self._holders[node.position] = heir.index
        heir.stage = Stage.WAITING
        if was is not Stage.WAITING:
            self._offer(heir)

    def judge(self, node: Node) -> None:
        """Lets the failure policy decide about a task's end."""
        if node.result is None or not node.result.status.fails:
            return
        policy = node.checked.task.on_failure or self._options.failure
        if policy is FailurePolicy.WAIT_ALL:
            self.failed = self.failed or causes.failed(node.result)
        elif policy is FailurePolicy.FAIL_FAST:
            self.stop(PlanStatus.FAILED, causes.failed(node.result), TaskStatus.SKIPPED)

    def _result_of(self, task: str) -> TaskResult:
        result = self.nodes[self._by_id[task]].result
        assert result is not None  # a task starts when those that it refers to have ended
        return result

    # ------------------------------------------------------------ the whole plan

    @property
    def arrived_whole(self) -> bool:
        """Nothing more of the round is to come that has an end of its own."""
        if self.complete or self.stopped is None:
            return self.complete
        return self.cut or all(index < len(self.nodes) for index in self._begun)

    def stop(self, status: PlanStatus, cause: Cause, unstarted: TaskStatus) -> None:
        """Nothing starts any more, and what runs is told to stop. The first reason counts."""
        self.cut = self.cut or status is not PlanStatus.FAILED
        if self.stopped is not None:
            return
        self.stopped = (status, cause)
        self.gate.clear()
        self._held.clear()
        for node in self.nodes:
            if status is PlanStatus.FAILED and node.index in self._begun and node.stage in {Stage.HELD, Stage.OFFERED}:
                self._stop_again(node, cause)
            elif node.stage in NEVER_STARTED:
                self.settle(node, node.ended(unstarted, self.now, cause=cause))
            elif node.stage is Stage.RUNNING:
                self.halt(node, TaskStatus.CANCELLED, cause)
            elif node.stage is Stage.STOPPING and status is PlanStatus.FAILED:
                node.stopping = TaskStatus.CANCELLED, cause  # also one that is late: its end may still say so

    def arrived(self) -> None:
        """The round is complete: what it held back may start and be told."""
        self.complete = True
        self.tell_withheld()
        held, self._held = self._held, []
        for index in held:
            if self.nodes[index].stage is Stage.HELD:
                self._offer(self.nodes[index])

    def tell_withheld(self) -> None:
        """Tells the ends of safe reads that came before the message was complete."""
        self.effects.extend(TaskSettled(result) for result in self._withheld)
        self._withheld.clear()

    def discard(self, cause: Cause) -> None:
        """A message that never became complete gives nothing, also not what was read ahead for it."""
        for number, result in enumerate(self._withheld):
            node = self.nodes[result.index]
            node.result = self._withheld[number] = node.ended(TaskStatus.CANCELLED, self.now, cause=cause)

    def next_round(self) -> None:
        """Continues after the end of a round."""
        self.round_start = len(self.nodes)
        self.complete = self.cut = False
        self.stopped = self.failed = None


def _skipped(needed: Sequence[Node]) -> Cause | None:
    """Why a task that needs these cannot run, where one of them failed already."""
    for one in needed:
        if one.result is not None and one.result.status is not TaskStatus.OK:
            return causes.skipped(one.result)
    return None
