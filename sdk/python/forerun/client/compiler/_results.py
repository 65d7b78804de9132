"""What a run of the loop gives, what it cost, and how far it may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.client._errors import ForerunClientError, InvalidRequest
from forerun.client._plan import PlanTask, TaskResult
from forerun.client._plan_local import PLAN_TASKS, REPLANS
from forerun.client._results import Failure
from forerun.client.compiler._model import Usage

_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far a run may go. Each bound that is met ends something with a reason that names it.

    Attributes:
        replans: Rounds after the first, whether the joiner wants another plan or a plan broke off; at most 3.
        tasks: Tasks of all rounds together; at most 1,000.
        plan_chars: Characters of one plan.
        plan_tokens: Tokens of one plan, told to the model.
        join_chars: Characters of one decision.
        join_tokens: Tokens of one decision, told to the model.
        tokens: Tokens of all requests together, prompts included, as far as they are known or estimated.
        repeats: Model requests that are asked again, over the whole run. Nothing else below the loop repeats any.
        first_token_seconds: Longest silence before an answer begins.
        idle_seconds: Longest silence within an answer.
        request_seconds: Longest answer.
        observation_chars: Characters of one result that a prompt shows; the middle of a longer one is left out.
        prompt_chars: Characters of all results that a prompt shows.
    """

    replans: int = 2
    tasks: int = 200
    plan_chars: int = 64_000
    plan_tokens: int = 4_000
    join_chars: int = 64_000
    join_tokens: int = 2_000
    tokens: int = 500_000
    repeats: int = 3
    first_token_seconds: float = 30.0
    idle_seconds: float = 20.0
    request_seconds: float = 180.0
    observation_chars: int = 4_000
    prompt_chars: int = 100_000

    def __post_init__(self) -> None:
        """Refuses bounds that the platform does not have.

        Raises:
            InvalidRequest: one of them is out of its range.
        """
        if not 0 <= self.replans <= REPLANS or not 1 <= self.tasks <= PLAN_TASKS or self.repeats < 0:
            raise InvalidRequest(
                "ARGUMENT_INVALID",
                f"replans is 0 to {REPLANS} (REPLANS), tasks 1 to {PLAN_TASKS} (PLAN_TASKS), repeats at least 0",
                metadata={"argument": "bounds"},
            )


class Purpose(StrEnum):
    """What a model was asked for."""

    PLAN = "plan"
    JOIN = "join"


class RequestEnd(StrEnum):
    """How a model request ended."""

    USED = "used"
    """Its answer is part of the result."""
    UNUSABLE = "unusable"
    """It was answered, and the answer is no plan or no decision."""
    FAILED = "failed"
    """It was not answered, or not to the end."""
    CANCELLED = "cancelled"
    """Nobody wanted the answer any more."""


class Basis(StrEnum):
    """Where a number of tokens comes from."""

    EXACT = "exact"
    """The provider said so, or certainly counted nothing."""
    ESTIMATED = "estimated"
    """From what was sent and what arrived: the provider may have counted more."""
    UNKNOWN = "unknown"
    """The request may have been counted, and nothing arrived that says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One attempt at a model. Each has its own line, also those that failed.

    Attributes:
        purpose: What it was for.
        round: Of the plan.
        attempt: 1, or more where it was asked again.
        end: How it ended.
        reason: Why, where it was not used; empty otherwise.
        usage: Tokens.
        basis: Where their number comes from.
        seconds: From the request to its end.
        first_token_seconds: Until the answer began; None where it did not.
    """

    purpose: Purpose
    round: int
    attempt: int
    end: RequestEnd
    reason: str
    usage: Usage
    basis: Basis
    seconds: float
    first_token_seconds: float | None


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of several requests.

    Attributes:
        prompt_tokens, completion_tokens: Together.
        wasted_tokens: Of requests whose answer was not used.
        at_least: The provider may have counted more.
    """

    prompt_tokens: int
    completion_tokens: int
    wasted_tokens: int
    at_least: bool

    @property
    def tokens(self) -> int:
        """Of both kinds."""
        return self.prompt_tokens + self.completion_tokens

    def money(self, *, prompt_per_million: float, completion_per_million: float) -> float:
        """The price, at so much for a million tokens."""
        prompt, completion = self.prompt_tokens * prompt_per_million, self.completion_tokens * completion_per_million
        return (prompt + completion) / 1_000_000


def spent(records: Sequence[RequestRecord]) -> Spent:
    """What requests cost together."""
    return Spent(
        sum(one.usage.prompt_tokens for one in records),
        sum(one.usage.completion_tokens for one in records),
        sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in records if one.end is not RequestEnd.USED),
        any(one.basis is not Basis.EXACT for one in records),
    )


def estimated_tokens(chars: int) -> int:
    """Tokens of a text, by its length: what is usual of English and JSON."""
    return -(-chars // _CHARS_PER_TOKEN)


class RunStatus(StrEnum):
    """How a run ended."""

    ANSWERED = "answered"
    FAILED = "failed"
    """Without an answer; the failure says why."""
    TIMEOUT = "timeout"
    """Its deadline came first; what ran was taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerResult:
    """The end of one run.

    Attributes:
        status: How it ended.
        answer: What the joiner says; empty where there is no answer.
        thought: Why it says so.
        failure: Set where the status is not `answered`.
        rounds: Plans that were begun.
        tasks: The tasks of all rounds that were run, in the order of the plans.
        kept: Tasks of later plans that asked again for a finished write, with the task whose result they got.
        requests: Each attempt at a model, in order.
        direct: Some of it ran around the platform, which was away.
    """

    status: RunStatus
    answer: str
    thought: str
    failure: Failure | None
    rounds: int
    tasks: Sequence[TaskResult]
    kept: Mapping[str, str] = field(default_factory=dict)
    requests: Sequence[RequestRecord] = ()

    @property
    def direct(self) -> bool:
        """Some of it ran around the platform, which was away."""
        return any(one.direct for one in self.tasks)

    @property
    def spent(self) -> Spent:
        """What the model requests cost together."""
        return spent(self.requests)

    def raise_for_status(self) -> CompilerResult:
        """Itself, where there is an answer.

        Raises:
            CompilerFailed: with this result.
        """
        if self.status is not RunStatus.ANSWERED:
            raise CompilerFailed(self)
        return self


class CompilerFailed(ForerunClientError):
    """A run ended without an answer. `result` is everything it gave and cost."""

    def __init__(self, result: CompilerResult) -> None:
        failure = result.failure or Failure("COMPILER_FAILED", f"the run ended as {result.status.value}")
        super().__init__(
            failure.reason,
            failure.message,
            metadata=failure.metadata,
            retry_after_seconds=failure.retry_after_seconds,
        )
        self.result = result


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """A plan is asked for."""

    round: int


@dataclass(frozen=True, slots=True)
class Thought:
    """The planner thinks."""

    round: int
    text: str


@dataclass(frozen=True, slots=True)
class TaskPlanned:
    """A task has arrived and goes to the executor."""

    round: int
    task: PlanTask


@dataclass(frozen=True, slots=True)
class TaskKept:
    """A task asks for a write that is finished already, and gets its result."""

    round: int
    task: PlanTask
    same_as: str


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task has its end."""

    result: TaskResult


@dataclass(frozen=True, slots=True)
class Progressed:
    """How many tasks have arrived, run, and have ended.

    With `reads_first` the end of a read is told as `TaskEnded` when it counts: when its plan is complete.
    """

    known: int
    running: int
    settled: int


@dataclass(frozen=True, slots=True)
class PlanBroken:
    """A plan broke off or is none; nothing more of it is done."""

    round: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Requested:
    """A model request has ended."""

    record: RequestRecord


@dataclass(frozen=True, slots=True)
class Decided:
    """The joiner has decided: the answer, or what another plan is to do."""

    round: int
    finish: bool
    text: str


Event = RoundStarted | Thought | TaskPlanned | TaskKept | Progressed | TaskEnded | PlanBroken | Requested | Decided
"""What happens during a run, in order."""
