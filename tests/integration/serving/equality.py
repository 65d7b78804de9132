"""Every drafter, depth and option on the served toy pair against the same decoded in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.integration.serving.conftest import Answer, Served
from tests.integration.serving.inprocess import Decoded, Pair, decode

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 1.2, "top_k": 5},
    "top-p": {"temperature": 1.0, "top_p": 0.7},
    "min-p": {"temperature": 1.1, "min_p": 0.2},
    "penalties": {
        "temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2,
    },
    "greedy with penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.1},
    "bias": {"temperature": 0.9, "logit_bias": {"7": 2.5, "8": -100}},
    "logprobs": {"temperature": 0.6, "logprobs": True},
}  # fmt: skip

DRAFTERS: Mapping[str, Mapping[str, Any]] = {
    "recall": {"drafters": ["recall"], "history": False},
    "history": {"drafters": ["recall"], "tenant": "t", "agent": "a"},
    "expected": {"drafters": ["recall"], "history": False},
    "model": {"drafters": ["model"]},
    "all": {"tenant": "t", "agent": "a"},
}


async def check(served: Served, depths: Iterable[int], tokens: int, *, at_once: int) -> list[str]:
    """What differs, in words; empty: nothing."""
    pair = Pair.of(served.profile)
    room = asyncio.Semaphore(at_once)
    found: list[str] = []

    async def one(option: str, drafter: str, depth: int, right: Decoded) -> None:
        given = {**asked(option, tokens), **DRAFTERS[drafter], "depth": depth}
        if drafter == "expected":
            given["expected"] = [right.tokens]
        async with room:
            answer = await served.generate(PROMPT, **given)
        found.extend(differences(f"{option}, {drafter}, depth {depth}", answer, right))
        if drafter in ("model", "expected") and depth and not answer.usage["accepted"]:
            found.append(f"{option}, {drafter}, depth {depth}: nothing was accepted, so nothing was tested")

    async with asyncio.TaskGroup() as group:
        for option in OPTIONS:
            right = decode(pair, PROMPT, json.dumps(asked(option, tokens)))
            assert len(right.tokens) == tokens
            for drafter in DRAFTERS:
                for depth in depths:
                    group.create_task(one(option, drafter, depth, right))
    return found


async def check_rejection(served: Served, depths: Iterable[int], tokens: int) -> list[str]:
    """Sampling by rejection depends on what is drafted: the same drafts of the draft model give the same text."""
    pair = Pair.of(served.profile)
    found = []
    for option in ("temperature", "top-k", "top-p", "min-p", "penalties", "bias"):
        for depth in depths:
            given = {**asked(option, tokens), "coupled": False}
            right = decode(pair, PROMPT, json.dumps(given), depth=depth, model=True)
            answer = await served.generate(PROMPT, **given, depth=depth, drafters=["model"])
            found += differences(f"rejection, {option}, depth {depth}", answer, right)
            if (answer.usage["proposed"], answer.usage["accepted"]) != (right.proposed, right.accepted):
                found.append(f"rejection, {option}, depth {depth}: other counts of drafted tokens")
    return found


def asked(option: str, tokens: int) -> dict[str, Any]:
    return {"max_tokens": tokens, "ignore_end": True, "seed": 11, **OPTIONS[option]}


def differences(case: str, answer: Answer, right: Decoded) -> list[str]:
    found = []
    if answer.tokens != right.tokens:
        pairs = zip(answer.tokens, right.tokens, strict=False)
        first = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), len(answer.tokens))
        found.append(f"{case}: other tokens from {first} on")
    for name in ("text", "finish", "logprobs"):
        if getattr(answer, name) != getattr(right, name):
            found.append(f"{case}: other {name}")
    return found
