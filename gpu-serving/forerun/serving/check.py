"""Whether a profile can be served: models that mean the same by their tokens, and that fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forerun.serving.backend.vocabulary import Comparison, Vocabulary, compare, from_tokenizer, of_toy
from forerun.serving.memory import MemoryPlan, memory_plan
from forerun.serving.profile import Engine, OpenVinoEngine, Profile, TensorRtLlmEngine, ToyEngine, VllmEngine

UNPACKED: Final = 24.0
"""Bytes of memory for each byte of a 4-bit file: weights are unpacked for two graphs. Measured: 2.3 GB for 98 MB."""

UNPACKED_INT8: Final = 9.0
"""The same with 8-bit weights."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a check found.

    Attributes:
        problems: Why it cannot be served; empty: it can.
        warnings: What could not be judged.
        vocabulary: The comparison of target and draft; None: there is no draft, or no file to compare.
        memory: The plan of GPU memory; None without GPUs.
        host_bytes: Memory of weights on CPU; None where it is not known.
        trees: The target verifies trees of drafted tokens; otherwise chains.
    """

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    vocabulary: Comparison | None = None
    memory: MemoryPlan | None = None
    host_bytes: int | None = None
    trees: bool = False


def check(profile: Profile, *, base: Path, memory_bytes: int | None = None) -> Findings:
    """Checks a profile against the files that it names.

    Args:
        profile: What is to be served.
        base: Folder that its relative paths count from.
        memory_bytes: Of this machine, for models on CPU; None: it is not judged.
    """
    problems, warnings = _missing(profile, base), list[str]()
    plan = memory_plan(profile)
    if plan is not None:
        problems += plan.problems
    comparison = None if problems else _compared(profile, base, problems, warnings)
    host = None if problems else _host_bytes(profile, base)
    if host is not None and memory_bytes is not None and host > memory_bytes:
        problems.append(
            f"the models need about {host / 1e9:.1f} GB of memory, this machine has {memory_bytes / 1e9:.1f}"
        )
    return Findings(problems, warnings, comparison, plan, host, profile.verifies_trees)


def _engines(profile: Profile) -> list[tuple[str, Engine]]:
    named = [("target", profile.target), ("draft", profile.draft)]
    return [(name, engine) for name, engine in named if engine is not None]


def _missing(profile: Profile, base: Path) -> list[str]:
    found = []
    for name, engine in _engines(profile):
        paths = [("tokenizer", getattr(engine, "tokenizer", None)), ("weights", getattr(engine, "weights", None))]
        for field_name, path in paths:
            if path is not None and not (base / path).is_file():
                found.append(f"{name}.{field_name}: there is no file {path}")
    return found


def _compared(profile: Profile, base: Path, problems: list[str], warnings: list[str]) -> Comparison | None:
    if profile.draft is None:
        return None
    try:
        sides = [_vocabulary(name, engine, base) for name, engine in _engines(profile)]
    except ValueError as error:
        problems.append(str(error))
        return None
    target, draft = sides
    if target is None or draft is None:
        warnings.append("target and draft were not compared token by token: name target.tokenizer and draft.tokenizer")
        return None
    comparison = compare(target, draft)
    if not comparison.same:
        shown = "; ".join(comparison.differences)
        problems.append(f"target and draft differ in {comparison.count} tokens: {shown}")
    return comparison


def _vocabulary(name: str, engine: Engine, base: Path) -> Vocabulary | None:
    if isinstance(engine, ToyEngine):
        return of_toy(name, engine.vocabulary)
    if isinstance(engine, OpenVinoEngine):
        return from_tokenizer(name, base / engine.tokenizer)
    assert isinstance(engine, VllmEngine | TensorRtLlmEngine), "no further engine has a tokenizer"
    if engine.tokenizer is None:
        return None
    return from_tokenizer(name, base / engine.tokenizer, rows=engine.shape.vocabulary)


def _host_bytes(profile: Profile, base: Path) -> int | None:
    """Resident memory of models on CPU, from the size of their 4-bit files."""
    total = 0
    for _, engine in _engines(profile):
        if isinstance(engine, OpenVinoEngine):
            growth = UNPACKED_INT8 if engine.int8 else UNPACKED
            total += int((base / engine.weights).stat().st_size * growth)
    return total or None
