"""Work that each model of a server has finished, from counters on the server's `/metrics` that only change by it.

A hung process does not keep the server from telling. What counts is finished work: the server counts a request of a
decoupled model when it hands it over, so the loop and engines are asked by their own counters.
"""

from __future__ import annotations

from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from forerun.serving.render.coupled import SERVED

# Without the `_total` that the parser gives to all counters, and Triton to none.
_OF_SERVER: Final = frozenset({"nv_inference_exec_count", "nv_inference_count"})
_OF_LOOP: Final = frozenset({"forerun_target_passes", "forerun_generations"})
_OF_ENGINE: Final = frozenset({"vllm:prompt_tokens", "vllm:generation_tokens"})


def progress_of(exposition: str, decoupled: frozenset[str]) -> dict[str, float]:
    """Finished work by model; nothing where what the server says is no exposition.

    Args:
        exposition: What the server's `/metrics` says.
        decoupled: Models that answer with streams.
    """
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                model = SERVED if name in _OF_LOOP else sample.labels.get("model", "")
                if name in (_OF_LOOP | _OF_ENGINE if model in decoupled else _OF_SERVER):
                    found[model] = found.get(model, 0.0) + sample.value
    except ValueError:
        return {}
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
