"""What the parts of the session machine share: effects under way, generations, budget, memory of the session."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forerun.core import limits
from forerun.core.freshness import Generations, Recorded, dependencies, recorded
from forerun.core.governor import Purse
from forerun.core.ledger import LedgerEntry, Totals
from forerun.core.outcomes import Mode
from forerun.core.providers import Health, Providers
from forerun.core.race import Paces
from forerun.core.session.effects import Append, Effect, Record
from forerun.core.session.events import JournalEvent
from forerun.core.session.lingering import Lingering
from forerun.core.session.memo import Memo
from forerun.core.session.model import ExecutionResult, PreparedCall, SessionFacts, SessionPolicy
from forerun.core.sites import Sites
from forerun.core.taint import TrustedText

Continuation = Callable[[object], None]

_SMOOTHING = 0.3


@dataclass(slots=True)
class Timing:
    """Smoothed durations, for what a prediction may hide. Seconds."""

    model: float | None = None
    control: float = 0.0
    tools: dict[str, float] = field(default_factory=dict)

    def model_step(self, seconds: float) -> None:
        """Learns from one model step."""
        self.model = seconds if self.model is None else self.model + _SMOOTHING * (seconds - self.model)

    def control_path(self, seconds: float) -> None:
        """Learns what the way to a tool and back takes beside the tool itself."""
        self.control += _SMOOTHING * (max(0.0, seconds) - self.control)

    def execution(self, tool: str, seconds: float) -> None:
        """Learns from one execution."""
        known = self.tools.get(tool)
        self.tools[tool] = seconds if known is None else known + _SMOOTHING * (seconds - known)


@dataclass(frozen=True, slots=True)
class Replica:
    """What all sessions of a replica learn together.

    Attributes:
        paces: How long the calls of tools take.
        providers: The health of providers.
    """

    paces: Paces = field(default_factory=Paces)
    providers: Providers = field(default_factory=Providers)


@dataclass(slots=True)
class Context:
    """State of one session under one owner.

    Attributes:
        facts: What does not change.
        policy: The policy in force.
        mode: The mode in force.
        sites: Call sites of (tenant, agent), shared by its sessions on this replica.
        replica: Shared by all sessions of this replica.
        number: Number of the last journal event.
        now: Time of the input that is handled, in the runner's monotonic seconds.
    """

    facts: SessionFacts
    policy: SessionPolicy
    mode: Mode
    sites: Sites
    replica: Replica = field(default_factory=Replica)
    number: int = 0
    now: float = 0.0
    effects: list[Effect] = field(default_factory=list)
    generations: Generations = field(default_factory=Generations)
    lingering: Lingering = field(default_factory=Lingering)
    memo: Memo = field(default_factory=Memo)
    trusted: TrustedText = field(default_factory=TrustedText)
    timing: Timing = field(default_factory=Timing)
    totals: Totals = field(default_factory=Totals)
    purse: Purse = field(init=False)
    waiting: dict[int, Continuation] = field(default_factory=dict)
    shared_seen: dict[str, int] = field(default_factory=dict)
    last_token: int = 0
    last_execution: int = 0

    def __post_init__(self) -> None:
        """Fills the purse and the constants that may go anywhere."""
        self.purse = Purse(self.policy.limits)
        for value in self.policy.trusted_values:
            self.trusted.add(value)

    def emit(self, effect: Effect) -> None:
        """Wants something done."""
        self.effects.append(effect)

    def token(self, then: Continuation) -> int:
        """A token whose answer continues with `then`."""
        self.last_token += 1
        self.waiting[self.last_token] = then
        return self.last_token

    def execution_id(self) -> str:
        """A new execution's id; epochs make it unique over owners."""
        self.last_execution += 1
        return f"{self.facts.session}.{self.facts.epoch}.{self.last_execution}"

    def append(
        self,
        event: JournalEvent,
        then: Continuation | None = None,
        *,
        event_id: str = "",
        since: int | None = None,
    ) -> None:
        """Writes to the journal; with `then`, goes on when it is acknowledged. `since`: see `Append`."""
        self.number += 1
        self.emit(Append(self.number, event, None if then is None else self.token(then), event_id, since))

    def record(self, entry: LedgerEntry, *, publish: bool = True, prepared: PreparedCall | None = None) -> None:
        """Counts an entry and writes it to the ledger."""
        self.totals.add(entry)
        self.emit(Record(entry, publish, prepared))

    def private_now(self, prepared: PreparedCall) -> Recorded:
        """Generations of the session's resources that a call depends on."""
        return recorded(self.generations, prepared.private.depends)

    def marks(self, answer: object) -> Mapping[str, int] | None:
        """The answer to ReadShared; what it says is remembered for `shared_known`."""
        if not isinstance(answer, Mapping):
            return None
        if len(self.shared_seen) + len(answer) > limits.GENERATION_MARKS:
            self.shared_seen.clear()
        self.shared_seen.update(answer)
        return answer

    def shared_known(self, prepared: PreparedCall) -> dict[str, int]:
        """Generations of shared resources as last seen here, for a call that does not wait for a look.

        They may be older than the real ones, never newer: what is recorded under them can only be too stale.
        """
        return {mark: self.shared_seen.get(mark, 0) for mark in shared_marks(prepared)}

    @property
    def tenant(self) -> str:
        """Whose session it is."""
        return self.facts.tenant

    def health(self, prepared: PreparedCall) -> Health:
        """The health of the provider behind a call's tool."""
        return self.replica.providers.of(self.tenant, prepared.contract.server or prepared.tool)

    def learn(self, prepared: PreparedCall, result: ExecutionResult) -> None:
        """Takes the duration of an execution."""
        self.timing.execution(prepared.tool, result.seconds)


def shared_marks(prepared: PreparedCall) -> tuple[str, ...]:
    """Marks of shared resources that a call depends on."""
    return dependencies(prepared.shared.depends)
