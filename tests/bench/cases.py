"""The ways of a call through the platform, each paired with the direct call and with an echo of the same size."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from forerun.client import AsyncSession, Call, Mode, Served
from tests.bench.servers import ECHO_METHOD, ECHO_STREAM, following
from tests.bench.stage import Stage

_THINKING: Final = {"walk": 0.080, "stroll": 0.030}
"""How long the model thinks: longer than a walk takes (ready), and shorter than a stroll (joined)."""
_DEADLINE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Case:
    """One way of a call.

    Attributes:
        name: What the results call it.
        tool: What is called.
        agent: The agent, so that each has a model of its own at the predictor.
        served: How the platform has to answer; what it answers in another way is counted, and not measured.
        added: The figure is the time beyond the direct call. Otherwise it is all that the client waits.
        mode: Of the session.
    """

    name: str
    tool: str
    agent: str
    served: Served | None
    added: bool
    mode: Mode | None = None


READY: Final = Case("ready hit", "walk", "walker", Served.READY, added=False)
MEMO: Final = Case("memo hit", "instant", "plain", Served.MEMO, added=False)
JOINED: Final = Case("joined", "stroll", "stroller", Served.JOINED, added=True)
MISS: Final = Case("miss", "instant", "plain", Served.DIRECT, added=True)
OFF: Final = Case("pass-through, mode off", "instant", "plain", Served.DIRECT, added=True, mode=Mode.OFF)
WRITE: Final = Case("write that may not be repeated", "post", "plain", Served.DIRECT, added=True)
EVENT: Final = Case("event", "", "plain", None, added=False)
OPEN: Final = Case("session open", "", "plain", None, added=False)
CASES: Final = (READY, MEMO, JOINED, MISS, OFF, WRITE, EVENT, OPEN)


@dataclass(slots=True)
class Sample:
    """One measurement of everything, in milliseconds.

    Attributes:
        forerun: The way through the platform.
        direct: The direct call.
        echo: The echo, as a unary call.
        stream: The echo over an open stream, which is how sessions talk.
        expected: The platform answered in the way that is measured.
    """

    forerun: float = 0.0
    direct: float = 0.0
    echo: float = 0.0
    stream: float = 0.0
    expected: bool = True


class Agent:
    """One session with what it is compared with.

    Args:
        stage: The processes.
        case: What it does.
        number: Makes its arguments its own.
    """

    def __init__(self, stage: Stage, case: Case, number: str) -> None:
        self._stage = stage
        self._case = case
        self._next = following(f"{case.name} {number}")
        self._session: AsyncSession | None = None
        self._once: Any = stage.echo.unary_unary(ECHO_METHOD)
        self._stream: Any = stage.echo.stream_stream(ECHO_STREAM)()

    async def open(self) -> None:
        """Opens the session; a memo is filled."""
        self._session = self._stage.client.session(self._case.agent, mode=self._case.mode)
        await self._session.open()
        if self._case is MEMO:
            await self._session.call_tool("instant", self._arguments())

    async def close(self) -> None:
        """Closes it."""
        self._stream.cancel()
        if self._session is not None:
            await self._session.close()

    async def step(self, turn: int) -> Sample:
        """One measurement of everything, each time in another order."""
        sample = Sample()
        works = [self._direct, self._echo, self._forerun]
        arguments = self._arguments()
        for work in (*works[turn % 3 :], *works[: turn % 3]):
            await work(sample, arguments)
        return sample

    def _arguments(self) -> bytes:
        return json.dumps({"id": self._next, "padding": "y" * 200}).encode()

    async def _direct(self, sample: Sample, arguments: bytes) -> None:
        if self._case.tool:
            began = time.monotonic()
            answer = (await self._stage.direct.post(f"/{self._case.tool}", content=arguments)).json()
            sample.direct = _ms(answer["ended"] if self._case is JOINED else began)

    async def _echo(self, sample: Sample, arguments: bytes) -> None:
        began = time.monotonic()
        await self._once(arguments, timeout=_DEADLINE_SECONDS)
        sample.echo = _ms(began)
        began = time.monotonic()
        await self._stream.write(arguments)
        await self._stream.read()
        sample.stream = _ms(began)

    async def _forerun(self, sample: Sample, arguments: bytes) -> None:
        assert self._session is not None
        match self._case:
            case Case(name="session open"):
                sample.forerun = await self._open_ms()
            case Case(name="event"):
                began = time.monotonic()
                await self._session.user_turn(arguments.decode())
                sample.forerun = _ms(began)
            case _:
                await self._call(self._session, sample, arguments)

    async def _call(self, session: AsyncSession, sample: Sample, arguments: bytes) -> None:
        case = self._case
        if case.tool in _THINKING:
            await session.model_started()
            await asyncio.sleep(_THINKING[case.tool])
        began = time.monotonic()
        (result,) = await session.call_tools([Call(case.tool, arguments)])
        ended = time.monotonic()
        answer = result.raise_for_status().json()
        sample.forerun = (ended - (answer["ended"] if case is JOINED else began)) * 1000.0
        sample.expected = result.served is case.served
        if case is not MEMO:
            self._next = answer["next"]

    async def _open_ms(self) -> float:
        session = self._stage.client.session("plain")
        began = time.monotonic()
        await session.open()
        opened = _ms(began)
        await session.close()
        return opened


async def run(agents: Sequence[Agent], steps: int, per_second: float) -> list[Sample]:
    """So many steps, spread over the agents and over time, so that what is measured is no queue of our own making."""
    samples: list[Sample] = []
    loop = asyncio.get_running_loop()
    began_at = loop.time()

    async def work(first: int, agent: Agent) -> None:
        for number in range(first, steps, len(agents)):
            await asyncio.sleep(max(0.0, began_at + number / per_second - loop.time()))
            samples.append(await agent.step(number))

    await asyncio.gather(*(work(first, agent) for first, agent in enumerate(agents[:steps])))
    return samples


def _ms(since: float) -> float:
    return (time.monotonic() - since) * 1000.0
