"""One authoritative call, the message that it belongs to, and what is kept of it when it was answered."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.core.freshness import Recorded
from forerun.core.order import BatchOrder
from forerun.core.session.model import AskedCall, CallAnswer, CallId, PreparedCall


class Stage(StrEnum):
    """Where a call stands."""

    WAITING = "waiting"
    LOOKING = "looking"
    FOLLOWING = "following"
    PREPARING = "preparing"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    JOINED = "joined"
    SETTLING = "settling"
    DONE = "done"


@dataclass(slots=True, kw_only=True)
class Call:
    """One authoritative call."""

    id: CallId
    asked: AskedCall
    batch: "Batch"
    position: int
    follows: int | None
    asked_at: float
    deadline: float
    own_deadline: bool
    stage: Stage = Stage.WAITING
    alone: bool = False
    execution: str = ""
    attempts: int = 0
    retry_at: float = 0.0
    second: str = ""
    second_at: float = math.inf
    raced: int = 0
    settling: int = 0
    may_continue: bool = False
    write: str = ""
    policy_version: str = ""
    started_at: float = 0.0
    private: Recorded = field(default_factory=lambda: Recorded({}))
    shared: Mapping[str, int] | None = None

    @property
    def executions(self) -> int:
        """How often its tool was asked for it."""
        return self.attempts + self.raced

    @property
    def prepared(self) -> PreparedCall:
        """The prepared call; only of calls that were not refused."""
        assert isinstance(self.asked.prepared, PreparedCall)
        return self.asked.prepared


@dataclass(slots=True)
class Batch:
    """The calls of one message that run together."""

    order: BatchOrder
    calls: list[Call] = field(default_factory=list)
    advancing: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """A call that was answered, kept for a client that asks again.

    Attributes:
        tool: Its tool.
        arguments: Its arguments, as sent.
        answer: Its answer.
        repeatable: It may run again once its answer is forgotten.
    """

    tool: str
    arguments: bytes
    answer: CallAnswer
    repeatable: bool = True
