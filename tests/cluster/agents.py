"""Agents outside of the cluster: sessions that call the demo's tools all the time, and judge each answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from forerun.client import AsyncClient, Call, Mode, Status

# Asked in turn by every session. All are reads of what nobody writes, so each has one right answer.
QUESTIONS = (
    Call("search", {"q": "harbour crane"}),
    Call("warehouse", {"sql": "SELECT name FROM sqlite_master ORDER BY name"}),
    Call("search", {"q": "insurance"}),
)
_END_SECONDS = 90.0


@dataclass(slots=True)
class Work:
    """What the agents met.

    Attributes:
        calls: Answers so far.
        sessions: Sessions that were opened and ended in order.
        failed: What was no answer, in words.
        differing: Answers that are not the first one to the same question, in words.
    """

    calls: int = 0
    sessions: int = 0
    failed: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    _right: dict[str, object] = field(default_factory=dict)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def judge(self, call: Call, status: Status, content: object, said: str) -> None:
        """Takes one answer."""
        self.calls += 1
        question = f"{call.name} {json.dumps(call.arguments, sort_keys=True)}"
        if status is not Status.OK:
            self.failed.append(f"{question}: {status} {said}")
        elif self._right.setdefault(question, content) != content:
            self.differing.append(question)
        self._moved.set()

    async def until(self, calls: int) -> None:
        """Returns when so many more calls were answered.

        Raises:
            TimeoutError: they were not in time.
        """
        wanted = self.calls + calls
        async with asyncio.timeout(_END_SECONDS):
            while self.calls < wanted:
                self._moved.clear()
                await self._moved.wait()


@asynccontextmanager
async def working(sessions: int) -> AsyncIterator[Work]:
    """So many sessions at a time at the platform of the environment, until the block ends; then each ends in order."""
    work, over = Work(), asyncio.Event()
    async with AsyncClient(connect_timeout_seconds=60.0) as client:
        agents = [asyncio.create_task(_agent(client, work, over, number)) for number in range(sessions)]
        try:
            yield work
            over.set()
            async with asyncio.timeout(_END_SECONDS):
                await asyncio.gather(*agents)
        finally:
            for agent in agents:
                agent.cancel()
            await asyncio.gather(*agents, return_exceptions=True)


async def _agent(client: AsyncClient, work: Work, over: asyncio.Event, number: int) -> None:
    while not over.is_set():
        label = f"cluster.{number}"
        async with client.session("research", mode=Mode.EXACT, label=label) as session:
            for question in QUESTIONS:
                await session.model_started()
                await session.assistant_message("asking")
                (result,) = await session.call_tools([question])
                work.judge(question, result.status, result.content, str(result.failure or ""))
        work.sessions += 1
