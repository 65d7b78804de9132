"""What a plan is made of: tasks, how they end, and what its owner chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.core import limits
from forerun.core.canonical import JsonValue


class FailurePolicy(StrEnum):
    """What the failure of a task does to the others. Tasks that refer to it are skipped in every case.

    A tool that reports a failure of its own (`TaskStatus.ERROR`) has given a result, and is no failure here.
    """

    ISOLATE = "isolate"
    """Nothing: each task has its own end, and the plan is fine."""
    FAIL_FAST = "fail_fast"
    """What runs is cancelled, nothing else starts, and the plan has failed."""
    WAIT_ALL = "wait_all"
    """Everything runs to its end, and then the plan has failed."""


class Early(StrEnum):
    """What may start while the plan still arrives."""

    ALL = "all"
    """Whatever has its inputs: a plan is an order that the planner has given."""
    READS = "reads"
    """Safe reads only. The calls of a model's message count when the message is complete."""


class TaskStatus(StrEnum):
    """How a task ended. Exactly one for each."""

    OK = "ok"
    ERROR = "error"
    """The tool ran and reports a failure of its own: an exit code, an exception, an error answer."""
    REJECTED = "rejected"
    """It never ran: its tool or its arguments cannot be used."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It was stopped or lost on its way, may have had its effect, and may not be repeated."""
    SKIPPED = "skipped"
    """It never ran, because something before it failed; the cause says what."""

    @property
    def fails(self) -> bool:
        """Counts as a failure for the failure policy."""
        return self in {self.REJECTED, self.TIMEOUT, self.UNAVAILABLE, self.OUTCOME_UNKNOWN}


class PlanStatus(StrEnum):
    """How a plan, or one round of it, ended."""

    OK = "ok"
    """Every task has its end, and no failure policy speaks against it."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """What arrived was cut off, changed or no plan."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a task or a plan did not end well.

    Attributes:
        reason: Stable word in snake case, or the reason that the executor gave.
        message: What is wrong and what to do.
        task: The task where it began; empty where it was none.
        metadata: Named details.
        retry_after_seconds: When asking again makes sense, or None.
    """

    reason: str
    message: str
    task: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One action of a plan.

    Attributes:
        id: Its name within the plan; letters, digits, `_` and `-`.
        tool: Name of the tool.
        arguments: An object. Strings in it may refer to results of earlier tasks, see `references`.
        literal: The arguments are a model's own: a `$` in them is a `$`.
        text: The arguments as they were sent. A task without references runs these bytes.
        after: Tasks that must have ended before, however they ended.
        timeout_seconds: Longest execution; None is the contract's.
        on_failure: What its failure does; None is the plan's policy.
        provider_call_id: A provider's id of the call; echoed only.
    """

    id: str
    tool: str
    arguments: Mapping[str, JsonValue]
    literal: bool = False
    text: bytes | None = None
    after: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    on_failure: FailurePolicy | None = None
    provider_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """How the execution of a task ended.

    Attributes:
        status: Any but SKIPPED.
        content: The observation, whole.
        media_type: Its type: JSON becomes a typed value, text a string.
        digest: Digest of the content.
        stored_bytes: Size of a content that is not here but stored elsewhere. No task can refer to it.
        cause: Set where the status is neither OK nor ERROR.
        not_started: It certainly never reached the tool.
    """

    status: TaskStatus
    content: bytes = b""
    media_type: str = ""
    digest: str = ""
    stored_bytes: int = 0
    cause: Cause | None = None
    not_started: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The end of one task.

    Attributes:
        id: Which task.
        index: Its place in call order, over all rounds.
        tool: Its tool.
        status: How it ended.
        content: The observation; empty where it is only stored.
        media_type: Its type.
        digest: Digest of the content.
        stored_bytes: Size of a content that is not here.
        cause: Set where the status is neither OK nor ERROR.
        shared_with: The task whose execution answered this one, or empty.
        seconds: From its start to its end; 0 where it never started.
        unsettled: It was told to stop, and nothing was heard of it in time.
        provider_call_id: Echo.
    """

    id: str
    index: int
    tool: str
    status: TaskStatus
    content: bytes = b""
    media_type: str = ""
    digest: str = ""
    stored_bytes: int = 0
    cause: Cause | None = None
    shared_with: str = ""
    seconds: float = 0.0
    unsettled: bool = False
    provider_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the owner of a plan chooses.

    Attributes:
        failure: What a failed task does to the others.
        early: What may start before the plan is complete.
        in_flight: Tasks that run at the same time. Each tool's own cap is in its contract.
        tasks: Most tasks, over all rounds.
        depth: Most tasks on a chain of references.
        replans: Most rounds after the first.
        held_bytes: Results that are held for later tasks.
    """

    failure: FailurePolicy = FailurePolicy.ISOLATE
    early: Early = Early.ALL
    in_flight: int = limits.CALLS_IN_FLIGHT_PER_MESSAGE
    tasks: int = limits.PLAN_TASKS
    depth: int = limits.PLAN_DEPTH
    replans: int = limits.REPLANS
    held_bytes: int = limits.PLAN_HELD_BYTES

    def __post_init__(self) -> None:
        """Refuses bounds that are none.

        Raises:
            ValueError: One of them is out of its range.
        """
        if self.in_flight < 1 or self.depth < 1 or self.replans < 0 or self.held_bytes < 0:
            raise ValueError("in_flight and depth must be at least 1, replans and held_bytes at least 0")
        if not 1 <= self.tasks <= limits.PLAN_TASKS_MAX:
            raise ValueError(f"tasks must be 1 to {limits.PLAN_TASKS_MAX} (PLAN_TASKS_MAX)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJournal:
    """What has to be stored of a plan to go on with it elsewhere.

    Attributes:
        rounds: The tasks of each round, in call order.
        settled: Ends of tasks, by id.
        started: Tasks that were started. Without an end, one of them may or may not have had its effect.
        complete: The last round has arrived whole.
        stopped: Why the plan was told to stop, or None.
        status: How a stopped plan ends.
    """

    rounds: tuple[tuple[Task, ...], ...]
    settled: Mapping[str, TaskResult] = field(default_factory=dict)
    started: frozenset[str] = frozenset()
    complete: bool = True
    stopped: Cause | None = None
    status: PlanStatus = PlanStatus.CANCELLED
