"""Requests to a model of which 2 % of the first tokens come 20 times as late: alone, and with second attempts."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence

from forerun.core.race import Race
from forerun.runtime.clock import SystemClock
from forerun.runtime.models.catalogue import Model, Provider
from forerun.runtime.models.models import CallTerms, Models
from forerun.runtime.models.port import Message, ModelRequest
from forerun.runtime.models.transport import make_chat_port
from tests.bench.processes import serving
from tests.bench.results import Row


async def replicas(requests: int) -> list[Row]:
    """The 99th percentile of the time to the first token, and the extra requests that it takes."""
    async with serving("models") as server:
        models = Models.made_of(make_chat_port(None, SystemClock()))
        addresses = [f"http://127.0.0.1:{server.port}/{name}/v1" for name in ("first", "other")]
        providers = tuple(Provider(name=url, url=url, model="m") for url in addresses)
        model = Model("m", providers, Race())
        alone: list[float] = []
        raced: list[float] = []
        extra = 0
        for number in range(requests):
            alone.append((await _first_token(models, model, f"ask {number}", races=False))[0])
            seconds, second = await _first_token(models, model, f"ask {number}", races=True)
            raced.append(seconds)
            extra += second
        await models.endpoints.close()
    known = raced[len(raced) // 5 :]  # at first nobody knows how long a token takes
    return [
        Row(
            name="race of replicas of a model: p99 of the first token", value=1_000 * _high(known), unit="ms",
            baseline=1_000 * _high(alone), n=len(known),
            more={
                "goal": 3.0, "p99_over_median": _high(known) / statistics.median(known),
                "median_ms": 1_000 * statistics.median(known), "extra_pct": 100 * extra / requests,
            },
        )
    ]  # fmt: skip


async def _first_token(models: Models, model: Model, text: str, *, races: bool) -> tuple[float, bool]:
    request = ModelRequest(messages=(Message("user", text),), temperature=0.0)
    call = models.call(model, request, CallTerms(races=races))
    began, first = time.perf_counter(), 0.0
    async with contextlib.aclosing(call.events()) as events:
        async for _ in events:
            first = first or time.perf_counter() - began
    await asyncio.sleep(0)
    return first, call.raced


def _high(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]
