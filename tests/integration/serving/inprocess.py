"""The toy pair decoded in the test's own process: what the served pair has to equal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from forerun.core.tokens.depth import DepthController, StepTable
from forerun.core.tokens.stopping import Answer
from forerun.serving.backend.deciding import Decider, ModelOptions
from forerun.serving.backend.drafts import Depth, Drafts, ModelDrafter
from forerun.serving.backend.engines import Engine, load
from forerun.serving.backend.loop import Loop, Verdict
from forerun.serving.backend.options import Options, read_options
from forerun.serving.backend.vocabulary import toy_bytes
from forerun.serving.profile import Profile

POSITIONS = 4_096


@dataclass
class Pair:
    """The engines of a profile, loaded here."""

    target: Engine
    draft: Engine
    size: int

    @classmethod
    def of(cls, profile: Profile) -> Pair:
        assert profile.draft is not None
        target, draft = (one.model_dump(mode="json") for one in (profile.target, profile.draft))
        return cls(load(target, POSITIONS), load(draft, POSITIONS), target["vocabulary"])


class LocalTarget:
    def __init__(self, pair: Pair, options: ModelOptions) -> None:
        self._engine = pair.target
        self._cache = pair.target.open()
        self._decider = Decider(options, pair.target, pair.size)

    def start(self, prompt: Sequence[int], live: int) -> Verdict:
        self._decider.begin(prompt)
        return self._decided(self._cache.feed(prompt, 1), [], live)

    def verify(
        self, keep: int, last: int, drafted: Sequence[int], live: int, parents: Sequence[int] | None = None
    ) -> Verdict:
        assert parents is None, "what the served trees are compared with decodes chains"
        self._cache.keep(keep)
        return self._decided(self._cache.feed([last, *drafted], len(drafted) + 1), drafted, live)

    def close(self) -> None:
        return None

    def _decided(self, rows: list[Any], drafted: Sequence[int], live: int) -> Verdict:
        found = self._decider.decide(rows, drafted, self._cache.length - len(drafted))
        return Verdict(found.tokens, found.accepted, declared(self._engine, live, len(drafted) + 1), found.logprobs)


class LocalDraft:
    def __init__(self, pair: Pair, options: ModelOptions) -> None:
        self._engine = pair.draft
        self._cache = pair.draft.open()
        self._decider = Decider(options, pair.draft, pair.size)

    def draft(self, keep: int, tokens: Sequence[int], count: int, live: int) -> tuple[list[int], float]:
        self._cache.keep(keep)
        fed, found, seconds = list(tokens), list[int](), 0.0
        for _ in range(count):
            (row,) = self._cache.feed(fed, 1)
            found.append(self._decider.propose(row, self._cache.length))
            seconds += declared(self._engine, live, len(fed))
            fed = [found[-1]]
        return found, seconds

    def close(self) -> None:
        return None


@dataclass
class Decoded:
    tokens: list[int]
    text: str
    logprobs: list[float]
    finish: str
    proposed: int
    accepted: int
    seconds: float


def declared(engine: Engine, live: int, rows: int) -> float:
    """What a pass takes when each of `live` texts has so many rows in it, as the served models count it."""
    seconds = engine.declared_seconds(live * rows)
    assert seconds is not None, "a toy declares its times"
    return seconds


def decode(
    pair: Pair,
    prompt: Sequence[int],
    given: str,
    *,
    depth: int | None = 0,
    model: bool = False,
    server: Depth | None = None,
) -> Decoded:
    """An answer: of the target alone, or with drafts of the draft model.

    Args:
        pair: The engines.
        prompt: Its tokens.
        given: Options as JSON.
        depth: Fixed; None: as the controller decides.
        model: The draft model is allowed.
        server: What the controller has learned from other texts; None: nothing, and no table.
    """
    options: Options = read_options(given, ends=frozenset({0}), most_tokens=4_000)
    passed_on = ModelOptions(options.sampling, options.sampling.seed or 0, options.coupled, options.logprobs)
    drafter = ModelDrafter(LocalDraft(pair, passed_on)) if model else None
    drafts = Drafts(None, drafter, server or Depth(DepthController(StepTable({}), 7)), depth)
    pieces = toy_bytes(pair.size)
    loop = Loop(
        LocalTarget(pair, passed_on),
        drafts,
        Answer(options.stop, pieces.__getitem__),
        options.speculate,
        lambda: 1,
        POSITIONS - 8,
    )
    found = Decoded([], "", [], "", 0, 0, 0.0)
    with closing(loop.run(prompt)) as steps:
        for step in steps:
            found.tokens += step.tokens
            found.text += step.text
            found.logprobs += step.logprobs or []
            found.finish = step.finish.value if step.finish else ""
    found.proposed, found.accepted = loop.counts.proposed, loop.counts.accepted
    found.seconds = loop.counts.seconds
    return found
