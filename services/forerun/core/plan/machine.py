"""The plan machine: inputs in, effects out. See the package's docstring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from forerun.core.contracts import Contract
from forerun.core.plan import causes
from forerun.core.plan.board import OUTCOMES, Board
from forerun.core.plan.check import PlanError
from forerun.core.plan.effects import PlanEffect, PlanFinished, Progress
from forerun.core.plan.model import Cause, PlanJournal, PlanOptions, PlanStatus, Task, TaskEnd, TaskResult, TaskStatus
from forerun.core.plan.node import NEVER_STARTED, Node, Stage


class PlanMachine:
    """One plan. Every method gives the effects to perform, in order.

    Times are monotonic seconds of whoever runs it. The machine never waits: `next_time` says when `tick` is due.
    """

    def __init__(
        self,
        contract_of: Callable[[str], Contract],
        options: PlanOptions | None = None,
        *,
        workspace_root: str | None = None,
        links: Mapping[str, str] | None = None,
        begun: Collection[int] = (),
    ) -> None:
        """Begins with no tasks.

        Args:
            contract_of: The contract of a tool; of one that nobody knows, that of an unknown tool.
            options: What the owner chooses.
            workspace_root: See `resources.footprint`.
            links: See `resources.footprint`.
            begun: Places of tasks that were started before: the plan is told again.
        """
        self._options = options or PlanOptions()
        self._board = Board(contract_of, self._options, workspace_root, links, begun)
        self._round = 0
        self._finished = False
        self._progress: Progress | None = None

    @property
    def round_ended(self) -> bool:
        """Nothing is open, and nothing more is expected unless the plan is continued."""
        return self._finished

    @property
    def arrived(self) -> bool:
        """The round has arrived whole, or nothing more of it counts."""
        return self._board.complete or self._board.stopped is not None

    def expects(self, index: int) -> bool:
        """The end of the task at that place may still be taken: it runs, or this round may still bring it.

        What is held back starts when the round is complete: if it had begun, the client has said so before.
        """
        board = self._board
        if index < len(board.nodes):
            return board.nodes[index].stage in {Stage.HELD, Stage.RUNNING, Stage.STOPPING}
        return not self.arrived

    @property
    def results(self) -> tuple[TaskResult, ...]:
        """The ends so far, in call order."""
        return tuple(node.result for node in self._board.nodes if node.result is not None)

    # ------------------------------------------------------------ intake

    def add(self, tasks: Sequence[Task], now: float) -> list[PlanEffect]:
        """Further tasks have arrived, in call order. All of them are taken, or none.

        Whoever tells them may not have heard yet that the plan has failed, so they are skipped and not refused.

        Raises:
            PlanError: They are no plan, or the plan takes no more.
        """
        stopped = self._board.stopped
        if self._board.complete or (stopped is not None and stopped[0] is not PlanStatus.FAILED):
            raise PlanError("closed", "the plan takes no more tasks: it is complete, cancelled or refused")
        self._board.now = now
        for one in self._board.check(tasks):
            self._board.place(one)
        return self._drain()

    def complete(self, now: float) -> list[PlanEffect]:
        """Every task of this round has arrived."""
        self._board.now = now
        if not self._board.complete:
            self._board.arrived()
        return self._drain()

    def refuse(self, cause: Cause, now: float) -> list[PlanEffect]:
        """What arrives was cut off or changed, or is no plan: nothing more of it is done."""
        return self._stop(PlanStatus.REFUSED, cause, TaskStatus.SKIPPED, now)

    def reopen(self, now: float) -> list[PlanEffect]:
        """Continues a plan whose round has ended: further tasks may refer to all that went before.

        Raises:
            PlanError: It was cancelled or is not at its end, or it was continued too often.
        """
        stopped = self._board.stopped
        if not self._finished or (stopped is not None and stopped[0] is PlanStatus.CANCELLED):
            raise PlanError("closed", "only a plan whose round has ended, and that nobody cancelled, can be continued")
        if self._round == self._options.replans:
            raise PlanError("too_many_replans", f"the plan was continued {self._round} times (REPLANS)")
        self._board.now = now
        self._next_round()
        return self._drain()

    def restore(self, journal: PlanJournal, now: float) -> list[PlanEffect]:
        """Goes on, in a new machine, from what was stored. Nothing that has an end is started again or told again.

        A task that was started and has no end is run again where it may be repeated; else its outcome is unknown.

        Raises:
            PlanError: The stored tasks are no plan under these options.
        """
        board = self._board
        board.now = now
        for number, tasks in enumerate(journal.rounds):
            if number:
                self._next_round()
            for one in board.check(tasks):
                board.place(one, journal.settled.get(one.task.id))
        board.interrupt(journal.started)
        for node in board.nodes[board.round_start :]:
            board.judge(node)
        if journal.stopped is not None:
            unstarted = TaskStatus.CANCELLED if journal.status is PlanStatus.CANCELLED else TaskStatus.SKIPPED
            board.stop(journal.status, journal.stopped, unstarted)
        if journal.complete:
            board.arrived()
        return self._drain()

    # ------------------------------------------------------------ what happens to tasks

    def finished(self, task: str, end: TaskEnd, now: float) -> list[PlanEffect]:
        """The execution of a task has ended. Ends that nobody waits for any more are ignored.

        Raises:
            ValueError: The end is SKIPPED, which no execution can be.
        """
        if end.status is TaskStatus.SKIPPED:
            raise ValueError("an execution cannot end as skipped")
        self._board.now = now
        node = self._board.node(task)
        if node is not None and (node.stage is Stage.RUNNING or self._ended_by_itself(node, end)):
            cause = None if end.status in OUTCOMES else end.cause or causes.ended(task, end.status)
            self._board.settle(node, node.ended(end.status, now, cause=cause, end=end))
        elif node is not None and node.stage is Stage.STOPPING:
            self._board.halted(node, certain=end.not_started)
        return self._drain()

    def cancel_task(self, task: str, now: float) -> list[PlanEffect]:
        """Takes a task back. Those that refer to it are skipped; one that is done or unknown stays as it is."""
        self._board.now = now
        node = self._board.node(task)
        if node is not None:
            cause = causes.cancelled(task)
            if node.stage in NEVER_STARTED:
                self._board.settle(node, node.ended(TaskStatus.CANCELLED, now, cause=cause))
            elif node.stage is Stage.RUNNING:
                self._board.halt(node, TaskStatus.CANCELLED, cause)
        return self._drain()

    def cancel(self, now: float) -> list[PlanEffect]:
        """Takes the whole plan back."""
        return self._stop(PlanStatus.CANCELLED, causes.PLAN_CANCELLED, TaskStatus.CANCELLED, now)

    def tick(self, now: float) -> list[PlanEffect]:
        """Time has passed: late tasks are told to stop, and those that did not stop in time are given up."""
        board = self._board
        board.now = now
        while (node := board.pop_due()) is not None:
            if node.stage is Stage.RUNNING:
                board.halt(node, TaskStatus.TIMEOUT, causes.late(node.id, node.ordering.timeout_seconds))
            else:
                board.halted(node, certain=False, unsettled=True)
        return self._drain()

    def next_time(self) -> float | None:
        """When `tick` has something to do, or None."""
        return self._board.next_due()

    def _ended_by_itself(self, node: Node, end: TaskEnd) -> bool:
        """A task was late, or another one's failure stops it, and its execution has ended otherwise at that moment.

        That is what is recorded of it, and what it is when the plan is told again. What has failed delivers no result.
        """
        if node.stage is not Stage.STOPPING or node.stopping is None:
            return False
        stopped = self._board.stopped
        if stopped is not None and stopped[0] is PlanStatus.FAILED:
            return end.status.fails
        late = node.stopping[0] is TaskStatus.TIMEOUT
        return late and end.status not in {TaskStatus.TIMEOUT, TaskStatus.CANCELLED}

    # ------------------------------------------------------------ the whole plan

    def _stop(self, status: PlanStatus, cause: Cause, unstarted: TaskStatus, now: float) -> list[PlanEffect]:
        self._board.now = now
        if not self._finished:
            if not self._board.complete:
                self._board.discard(cause)
            self._board.stop(status, cause, unstarted)
        return self._drain()

    def _next_round(self) -> None:
        self._round += 1
        self._finished = False
        self._board.next_round()

    def _drain(self) -> list[PlanEffect]:
        board = self._board
        board.advance()
        ended = board.open == 0 and board.arrived_whole and not self._finished
        if ended:
            board.tell_withheld()
        settled = len(board.nodes) - board.open
        progress = Progress(len(board.nodes), board.gate.in_flight, settled, board.complete or ended or self._finished)
        if progress != self._progress:
            self._progress = progress
            board.effects.append(progress)
        if ended:
            self._finished = True
            status, cause = board.stopped or (PlanStatus.FAILED if board.failed else PlanStatus.OK, board.failed)
            board.effects.append(PlanFinished(status, self.results, cause, self._round))
        effects, board.effects = board.effects, []
        return effects
