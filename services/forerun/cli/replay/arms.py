"""Runs the sessions of one arm, in their order, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import httpx

from forerun.cli.replay.agent import Observed, SessionLike, SessionRun, run_agent
from forerun.cli.replay.direct import DirectSession
from forerun.cli.replay.positions import Recording
from forerun.cli.replay.toolserver import label_of
from forerun.cli.replay.traces import RecordedCall

SEQUENTIAL, PARALLEL, FORERUN, ORACLE = "sequential", "parallel", "forerun", "oracle"
OFF, REHEARSAL = "off", "rehearsal"

Connect = Callable[[int, Recording], AbstractAsyncContextManager[SessionLike]]
"""Opens the session of a recording under its number; leaving the context ends it."""

Progress = Callable[[str, int, int], None]
"""Is told the arm, sessions done, and sessions in all."""


async def run_arm(
    arm: str, recordings: Sequence[Recording], connect: Connect, *, at_once: int, progress: Progress
) -> list[SessionRun]:
    """Runs every session once.

    Args:
        arm: Name of the arm, for the progress.
        recordings: The sessions, in order; a later one starts when a place is free.
        connect: Opens a session. The time that opening takes is part of the session's.
        at_once: Sessions that run at a time.
        progress: Told after each session.
    """
    runs: dict[int, SessionRun] = {}
    places = iter(enumerate(recordings))

    async def work() -> None:
        for number, recording in places:
            runs[number] = await _run(number, recording, connect)
            progress(arm, len(runs), len(recordings))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(at_once, len(recordings))):
            tasks.create_task(work())
    return [runs[number] for number in range(len(recordings))]


async def _run(number: int, recording: Recording, connect: Connect) -> SessionRun:
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    async with connect(number, recording) as session:
        opening_seconds = loop.time() - started_at
        run = await run_agent(recording.session, session)
    return SessionRun(run.session, run.wall_seconds + opening_seconds, run.observed)


class DirectArm:
    """Opens sessions that call the tool server without the platform.

    Args:
        arm: Name of the arm, and first part of its labels.
        client: Reaches the tool server.
        parallel: Calls of a message side by side where their contracts allow it.
        planted: Share of its time by which each session is made longer.
    """

    def __init__(self, arm: str, client: httpx.AsyncClient, *, parallel: bool, planted: float = 0.0) -> None:
        self._arm = arm
        self._client = client
        self._parallel = parallel
        self._planted = planted

    def __call__(self, number: int, recording: Recording) -> AbstractAsyncContextManager[SessionLike]:
        """Opens a session."""
        session: SessionLike = DirectSession(
            self._client, label_of(self._arm, number), recording.rules, parallel=self._parallel
        )
        return _Plain(_Slowed(session, self._planted) if self._planted else session)


class _Slowed:
    """A session that takes longer by a share of the time that it takes anyway."""

    def __init__(self, session: SessionLike, share: float) -> None:
        self._session = session
        self._share = share
        self._since = asyncio.get_running_loop().time()

    async def user_turn(self, text: str) -> None:
        await self._session.user_turn(text)

    async def model_started(self, turn: int) -> None:
        await self._session.model_started(turn)

    async def assistant_message(self, turn: int, text: str) -> None:
        await self._session.assistant_message(turn, text)
        await self._lag()

    async def call_batch(self, turn: int, calls: Sequence[RecordedCall]) -> Sequence[Observed]:
        observed = await self._session.call_batch(turn, calls)
        await self._lag()
        return observed

    async def _lag(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._share * (loop.time() - self._since))
        self._since = loop.time()


class _Plain(AbstractAsyncContextManager[SessionLike]):
    def __init__(self, session: SessionLike) -> None:
        self._session = session

    async def __aenter__(self) -> SessionLike:
        return self._session

    async def __aexit__(self, *_: object) -> None:
        return None
