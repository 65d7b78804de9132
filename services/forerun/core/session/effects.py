"""What the machine wants done. Effects with a token are answered through `SessionMachine.resume`."""

from dataclasses import dataclass

from forerun.core.ledger import LedgerEntry
from forerun.core.session.events import JournalEvent
from forerun.core.session.model import CallAnswer, ExecutionResult, PreparedCall


@dataclass(frozen=True, slots=True)
class Append:
    """Write an event to the journal, in the order of the effects.

    With a token: answer True when it is acknowledged, False when it was certainly not stored or nobody knows.

    Attributes:
        event_id: The client's id of the event; empty: a new one.
        since: Number of an event; None: of none. Where the answer of a call in that event, or in one after it, can
            never be stored, an intent is not stored either.
    """

    number: int
    event: JournalEvent
    token: int | None = None
    event_id: str = ""
    since: int | None = None


@dataclass(frozen=True, slots=True)
class AwaitStored:
    """Answer True when every event so far is stored, False when that takes too long or can never be.

    Attributes:
        since: Number of the first event whose loss matters: where the answer of a call before it could not be stored,
            that is no reason to answer False.
    """

    token: int
    since: int


@dataclass(frozen=True, slots=True)
class Execute:
    """Run an action. Its end comes through `SessionMachine.execution_finished`.

    Attributes:
        execution: Id of the execution.
        prepared: What to run.
        speculative: At the lowest priority, only into a free slot.
        ahead: It runs before its call is asked for: only in the very version that it is meant for.
        timeout_seconds: When the tool has failed.
        fork: Run in a fork of this id; empty: no fork.
        merge_on_success: Merge the fork at the end.
        idempotency_key: Stable over retries of one logical call.
        provider: Which of the tool's equivalent providers; a second attempt goes to the next one.
    """

    execution: str
    prepared: PreparedCall
    speculative: bool
    timeout_seconds: float
    fork: str
    merge_on_success: bool
    idempotency_key: str
    ahead: bool = False
    provider: int = 0


@dataclass(frozen=True, slots=True)
class Promote:
    """Make a running speculation authoritative. Nothing is answered: if it is too late, its end is under way."""

    execution: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class CancelExecution:
    """Stop an execution, down to the tool. Its end still comes.

    Attributes:
        settle: Not before the tool has really ended, within `CANCEL_SETTLE_SECONDS`.
    """

    execution: str
    settle: bool = False


@dataclass(frozen=True, slots=True)
class MergeFork:
    """Merge a fork into the workspace. Answer True when merged, False when it was refused or failed.

    Attributes:
        fork: What is merged.
        as_fork: The fork of the call that it is merged for: whoever executes the call again finds the merge.
    """

    fork: str
    as_fork: str
    token: int


@dataclass(frozen=True, slots=True)
class DropFork:
    """Drop a fork."""

    fork: str


@dataclass(frozen=True, slots=True)
class ReadShared:
    """Read generations of shared resources. Answer a mapping, or None where they cannot be read."""

    marks: tuple[str, ...]
    token: int


@dataclass(frozen=True, slots=True)
class BeginShared:
    """A write of shared resources is to start: tell all sessions, then count it. Answer True when both is stored.

    Whatever the answer is, `BumpShared` of the same write takes it back.

    Attributes:
        write: Its id.
        keys: What it writes.
        seconds: How long it may take.
    """

    write: str
    keys: tuple[str, ...]
    seconds: float
    token: int


@dataclass(frozen=True, slots=True)
class BumpShared:
    """Count a write of shared resources. Answer True when it is stored; without a token it is owed until it is.

    Attributes:
        unsettled: The write may still take effect: that is said to all sessions before it is counted.
        write: It does not run any more, and all sessions are told; empty: it was never begun, or still runs.
    """

    keys: tuple[str, ...]
    token: int | None = None
    unsettled: bool = False
    write: str = ""


@dataclass(frozen=True, slots=True)
class Certify:
    """Have a finished speculation certified. Answer a `Certificate`."""

    speculation: str
    prepared: PreparedCall
    result: ExecutionResult
    policy_version: str
    recorded: tuple[tuple[str, int], ...]
    current: tuple[tuple[str, int], ...]
    age_seconds: float
    tainted_paths: tuple[str, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """The verifier's verdict, or why there is none."""

    certified: bool
    reason: str = ""
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """Give the agent its answer.

    Attributes:
        answer: The answer.
        conflict: It refuses a key that is in use: the call that runs under that key is not answered by it.
    """

    answer: CallAnswer
    conflict: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """Write a ledger entry.

    Attributes:
        entry: The entry.
        publish: False for decisions that are only counted: they follow from the rule and would flood the ledger.
        prepared: For an audited hit: what ran.
    """

    entry: LedgerEntry
    publish: bool = True
    prepared: PreparedCall | None = None


Effect = (
    Append
    | AwaitStored
    | Execute
    | Promote
    | CancelExecution
    | MergeFork
    | DropFork
    | ReadShared
    | BeginShared
    | BumpShared
    | Certify
    | Answer
    | Record
)
