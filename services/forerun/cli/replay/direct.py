"""The arms without the platform: the agent calls the tool server itself, one call after another or in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import quote

import httpx

from forerun.cli.replay.agent import Observed
from forerun.cli.replay.policies import Rules
from forerun.cli.replay.positions import touch
from forerun.cli.replay.traces import RecordedCall
from forerun.core.order import BatchCall, BatchOrder

_HTTP_ERROR = 400


class DirectSession:
    """Calls tools over HTTP without anything in between.

    Args:
        client: Reaches the tool server; its base URL is the server's address.
        label: Label of the session at the tool server.
        rules: Contracts of the tools: they decide what may run side by side.
        parallel: Ordinary ordered parallel execution of the calls of a message, with the platform's own limit on
            calls in flight. False: one after another.
    """

    def __init__(self, client: httpx.AsyncClient, label: str, rules: Rules, *, parallel: bool) -> None:
        self._client = client
        self._label = label
        self._rules = rules
        self._parallel = parallel

    async def user_turn(self, text: str) -> None:
        """Nobody else listens."""

    async def model_started(self, turn: int) -> None:
        """Nobody else listens."""

    async def assistant_message(self, turn: int, text: str) -> None:
        """Nobody else listens."""

    async def call_batch(self, turn: int, calls: Sequence[RecordedCall]) -> Sequence[Observed]:
        """Runs the calls of one message."""
        if not self._parallel or len(calls) == 1:
            return [await self.call(call) for call in calls]
        order = BatchOrder(self._placed(call) for call in calls)
        results: dict[int, Observed] = {}
        progressed = asyncio.Event()

        async def run(index: int) -> None:
            results[index] = await self.call(calls[index])
            order.finished(index)
            progressed.set()

        async with asyncio.TaskGroup() as tasks:
            while not order.done:
                progressed.clear()
                for index in order.ready():
                    tasks.create_task(run(index))
                await progressed.wait()
        return [results[index] for index in range(len(calls))]

    def _placed(self, call: RecordedCall) -> BatchCall:
        touched = touch(self._rules, call.tool, call.arguments)
        return BatchCall(reads=touched.reads, writes=touched.writes)

    async def call(self, call: RecordedCall) -> Observed:
        """Runs one call."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        response = await self._client.post(
            f"/{quote(self._label, safe='')}/{quote(call.tool, safe='')}",
            content=call.arguments,
            headers={"content-type": "application/json"},
        )
        seconds = loop.time() - started_at
        return Observed(
            content=response.content,
            tool_error=response.status_code >= _HTTP_ERROR,
            status="ok",
            served="direct",
            seconds=seconds,
            execution_seconds=seconds,
        )
