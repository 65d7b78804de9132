"""Work that each model of a server has finished, from counters on the server's `/metrics` that only change by it.

A hung process does not keep the server from telling. What counts is finished work: the server counts a request of a
decoupled model when it hands it over, so the loop and engines are asked by their own counters.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import httpx

from forerun.serving.render.coupled import SERVED

ReadProgress = Callable[[], Awaitable[Mapping[str, float] | None]]
"""Finished work by model, in no unit; None where the server does not tell."""

_SERIES: Final = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")
_MODEL: Final = re.compile(r'(?:^|,)model="(?P<model>[^"]*)"')
_OF_SERVER: Final = frozenset({"nv_inference_exec_count", "nv_inference_count"})
_OF_LOOP: Final = frozenset({"forerun_target_passes_total", "forerun_generations_total"})
_OF_ENGINE: Final = frozenset({"vllm:prompt_tokens_total", "vllm:generation_tokens_total"})


def progress_of(exposition: str, decoupled: frozenset[str]) -> dict[str, float]:
    """Finished work by model.

    Args:
        exposition: What the server's `/metrics` says.
        decoupled: Models that answer with streams.
    """
    found: dict[str, float] = {}
    for line in exposition.splitlines():
        series = _SERIES.match(line)
        if series is None:
            continue
        name, labels = series["name"], _MODEL.search(series["labels"] or "")
        model = SERVED if name in _OF_LOOP else labels["model"] if labels is not None else ""
        counts = name in (_OF_LOOP | _OF_ENGINE if model in decoupled else _OF_SERVER)
        if counts:
            found[model] = found.get(model, 0.0) + float(series["value"])
    return found


async def scraped(address: str, seconds: float) -> str | None:
    """What `/metrics` says; None where nothing comes in time.

    Args:
        address: `host:port`.
        seconds: For the whole answer.
    """
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=seconds) as client:
            response = await client.get(f"http://{address}/metrics")
    except httpx.HTTPError:
        return None
    return response.text if response.status_code == httpx.codes.OK else None
