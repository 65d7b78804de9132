"""What the machine writes to the journal. The orchestrator turns each into the contract's SessionEvent."""

from dataclasses import dataclass

from forerun.core.outcomes import Mode
from forerun.core.session.model import AskedCall, CallAnswer, CallId


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The session was opened or taken over."""

    tools: tuple[str, ...]
    mode: Mode
    held_out: bool
    policy: str
    label: str
    schemas: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The user said something."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelStarted:
    """A model request was started."""

    turn: int


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """The model's message is complete, without its calls."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class CallsAsked:
    """The calls of one message."""

    turn: int
    calls: tuple[AskedCall, ...]


@dataclass(frozen=True, slots=True)
class CallIntent:
    """A call that may not be repeated is about to start."""

    call: CallId
    digest: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call was answered."""

    answer: CallAnswer


@dataclass(frozen=True, slots=True)
class CallCancelled:
    """A call was taken back."""

    call: CallId


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The task's result, as the agent reports it."""

    reward: float
    label: str


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session ended."""

    reason: str


JournalEvent = (
    SessionOpened
    | UserTurn
    | ModelStarted
    | AssistantMessage
    | CallsAsked
    | CallIntent
    | CallFinished
    | CallCancelled
    | TaskOutcome
    | SessionClosed
)
