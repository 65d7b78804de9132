"""What agents write down: every call with its answer, every plan, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.calls import Planned
from tests.simulation.graphs import GraphRun
from tests.simulation.plans import Plan


@dataclass(frozen=True, slots=True)
class Asked:
    """One call as its agent saw it. Times are loop seconds of the agent.

    Attributes:
        status: Status of the answer, in lower case.
        served: How it was served; empty for a task of a plan, whose client does not hear of it.
        calls: Calls of its message, for its bound.
    """

    session: str
    turn: int
    index: int
    call: Planned
    asked_at: float
    answered_at: float
    timeout_seconds: float | None
    calls: int
    status: str
    served: str
    reason: str
    content: bytes
    tool_error: bool


@dataclass(slots=True)
class Diary:
    """What all agents of a run wrote down.

    Attributes:
        asked: Every call with its answer.
        open: Calls of which no answer came yet.
        sessions: Session to plan.
        lost: Why sessions ended that their agents did not end.
        conflicts: Repeats of a key with other arguments that were not refused.
        breaches: Answers to somebody to whom the session does not belong.
        refused: How often strangers were refused.
        graphs: Every plan of calls.
    """

    asked: list[Asked] = field(default_factory=list)
    open: int = 0
    sessions: dict[str, Plan] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    refused: int = 0
    graphs: list[GraphRun] = field(default_factory=list)


def asked_of(run: GraphRun, asked_at: float, answered_at: float) -> Iterator[Asked]:
    """The tasks of a plan as calls, as far as their ends are known."""
    for index, result in sorted(run.results.items()):
        failed = result.status.value == "error"
        yield Asked(
            session=run.session,
            turn=run.turn,
            index=index,
            call=run.calls[index].copy(),
            asked_at=asked_at,
            answered_at=answered_at,
            timeout_seconds=None,
            calls=len(run.calls),
            status="ok" if failed else result.status.value,
            served="shared" if result.shared_with else "",
            reason=result.failure.reason if result.failure else "",
            content=result.content,
            tool_error=failed,
        )
