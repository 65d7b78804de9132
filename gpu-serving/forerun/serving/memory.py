"""The plan of GPU memory: what of a profile lies where, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forerun.serving.profile import EngineSpeculation, GpuEngine, Profile, TensorRtLlmEngine, VllmEngine

RUNTIME_BYTES: Final = 2 * 1024**3
"""Context, kernels, graphs and activations of an engine on one GPU. A rule of thumb; engines measure it at start."""

HEAD_SHARE: Final = 0.05
"""Weights of an EAGLE head, as a share of its target's: one block and a projection."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something in a GPU's memory.

    Attributes:
        what: In words.
        bytes_per_gpu: Its share of each GPU that holds it.
        gpus: Over how many it is spread.
    """

    what: str
    bytes_per_gpu: int
    gpus: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What of a profile lies in the memory of each GPU of its target.

    Attributes:
        parts: Everything.
        memory_bytes: Of one GPU, as far as the engine may use it.
        cache_tokens: Tokens whose keys and values fit into what is left.
        wanted_tokens: Tokens of all slots at full context.
        problems: What does not fit, in words.
    """

    parts: tuple[Part, ...]
    memory_bytes: int
    cache_tokens: int
    wanted_tokens: int
    problems: tuple[str, ...]

    @property
    def full_slots(self) -> float:
        """Share of the slots that can have their full context at the same time."""
        return min(1.0, self.cache_tokens / self.wanted_tokens)


def memory_plan(profile: Profile) -> MemoryPlan | None:
    """The plan; None for a profile without GPUs."""
    target = profile.target
    if profile.gpus is None or not isinstance(target, VllmEngine | TensorRtLlmEngine):
        return None
    parts = [Part("weights of the target", target.shape.weight_bytes // target.gpus, target.gpus)]
    cache_per_token = target.shape.cache_bytes_per_token // min(target.gpus, target.shape.kv_heads)
    draft, speculation = profile.draft, profile.speculation
    if isinstance(draft, VllmEngine | TensorRtLlmEngine):
        # Engines keep a draft whole beside each part of the target.
        parts.append(Part("weights of the draft", draft.shape.weight_bytes, target.gpus))
        cache_per_token += draft.shape.cache_bytes_per_token
    if isinstance(speculation, EngineSpeculation) and speculation.method == "eagle3":
        parts.append(Part("EAGLE head", int(target.shape.weight_bytes * HEAD_SHARE), target.gpus))
    parts.append(Part("runtime", RUNTIME_BYTES, target.gpus))
    available = int(profile.gpus.memory_bytes * target.memory_share)
    left = available - sum(one.bytes_per_gpu for one in parts)
    tokens = max(0, left // cache_per_token)
    parts.append(Part("keys and values", max(0, left), target.gpus))
    return MemoryPlan(
        tuple(parts),
        available,
        tokens,
        profile.slots * profile.context_tokens,
        tuple(_problems(profile, target, left, tokens)),
    )


def _problems(profile: Profile, target: GpuEngine, left: int, tokens: int) -> list[str]:
    found = []
    if left < 0:
        found.append(
            f"weights and runtime need {-left / 1e9:.1f} GB more than one GPU may use: split the target over more GPUs "
            "(target.gpus), or serve it with fewer bits"
        )
    elif tokens < profile.context_tokens:
        found.append(
            f"only {tokens} tokens fit beside the weights, one text may have {profile.context_tokens} "
            "(context_tokens): lower it, or split the target over more GPUs"
        )
    copies = 2 if isinstance(profile.speculation, EngineSpeculation) and profile.speculation.plain_copy else 1
    gpus = profile.gpus.count if profile.gpus is not None else 0
    if copies * target.gpus > gpus:
        found.append(
            f"the plain copy needs {target.gpus} GPUs of its own, and of {gpus} the target takes {target.gpus}: "
            "leave it out (speculation.plain_copy)"
        )
    return found
