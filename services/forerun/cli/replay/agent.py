"""The paced agent: repeats the recorded decisions of a session and waits as long as the recorded model did.

It never looks at what it observes: every arm makes the same calls, so that what they observe can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.cli.replay.traces import RecordedCall, Session


@dataclass(frozen=True, slots=True)
class Observed:
    """What the agent got for one call.

    Attributes:
        content: The answer, byte for byte.
        tool_error: The tool reported a failure.
        status: How the call ended: `ok`, or the lower-case name of another status.
        served: How it was answered (`direct`, `ready`, `joined`, `memo`, `shared`).
        seconds: From ask to answer, as the client sees it.
        execution_seconds: Of the execution behind it.
    """

    content: bytes
    tool_error: bool
    status: str
    served: str
    seconds: float
    execution_seconds: float


class SessionLike(Protocol):
    """What the agent talks to: a session of the platform, or tools without one."""

    async def user_turn(self, text: str) -> None:
        """The user said something."""
        ...

    async def model_started(self, turn: int) -> None:
        """The model request for message `turn` was started."""
        ...

    async def assistant_message(self, turn: int, text: str) -> None:
        """Message `turn` is complete."""
        ...

    async def call_batch(self, turn: int, calls: Sequence[RecordedCall]) -> Sequence[Observed]:
        """Runs the calls of message `turn`; the observations come in call order."""
        ...


@dataclass(frozen=True, slots=True)
class SessionRun:
    """One session in one arm.

    Attributes:
        session: The session.
        wall_seconds: What its agent spent on models and on waiting for tools.
        observed: For each step, what its calls gave.
    """

    session: Session
    wall_seconds: float
    observed: tuple[tuple[Observed, ...], ...]

    @property
    def flat(self) -> tuple[Observed, ...]:
        """The observations in the order in which the agent got them."""
        return tuple(one for step in self.observed for one in step)


async def run_agent(session: Session, connection: SessionLike) -> SessionRun:
    """Repeats a session. Its time follows the running loop."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    observed: list[tuple[Observed, ...]] = []
    for step in session.steps:
        for text in step.user_turns:
            await connection.user_turn(text)
        await connection.model_started(step.turn)
        await asyncio.sleep(step.model_seconds)
        if step.text or not step.calls:
            await connection.assistant_message(step.turn, step.text)
        if step.calls:
            observed.append(tuple(await connection.call_batch(step.turn, step.calls)))
    return SessionRun(session, loop.time() - started_at, tuple(observed))
