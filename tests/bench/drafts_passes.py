"""Counting verification passes: recorded messages are taken for the target's output."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forerun.core.tokens.drafts import ROOT, Draft, Drafter
from forerun.core.tokens.evidence import EvidenceWeights
from forerun.core.tokens.history import History, merge
from forerun.core.tokens.recall import RecallDrafter
from tests.bench.drafts_baselines import PatternIndex, PromptLookup, SuffixDecoding
from tests.bench.drafts_data import Message, Run, Tokens

DEPTHS: Final = (7, 15)
BRANCHES: Final = 8
_LIMIT: Final = 1 << 20
_MESSAGE_TOKENS: Final = 1_000  # of one message; what lies behind would only weigh long files
# The paper's alpha: 1 is the default of the engines that have it, 4 drafts as deep as it ever says.
_SUFFIX: Final = (
    ("SuffixDecoding, alpha 1", 1, 1.0),
    ("SuffixDecoding, alpha 4", 1, 4.0),
    ("SuffixDecoding, alpha 4, tree", BRANCHES, 4.0),
)


@dataclass(slots=True)
class Passes:
    """Passes of one contestant.

    Attributes:
        tokens: By part of the message in which the pass began.
        passes: The same.
        microseconds: CPU time of each proposal.
        expected: Tokens that the drafts promised, all passes together.
    """

    tokens: dict[str, int] = field(default_factory=lambda: {"text": 0, "calls": 0})
    passes: dict[str, int] = field(default_factory=lambda: {"text": 0, "calls": 0})
    microseconds: array[float] = field(default_factory=lambda: array("f"))
    expected: float = 0.0

    def per_pass(self, *parts: str) -> float | None:
        """Tokens per pass."""
        chosen = parts or tuple(self.tokens)
        passes = sum(self.passes[part] for part in chosen)
        return sum(self.tokens[part] for part in chosen) / passes if passes else None


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to draft.

    Attributes:
        name: For the report.
        depth: Tokens drafted at most.
        branches: More than 1: trees.
        start: A drafter for one text of an agent.
    """

    name: str
    depth: int
    branches: int
    start: Callable[[str], Drafter]


class Past:
    """What models put out on other tasks: for each agent, and for all of them together.

    Args:
        runs: The runs it is made of.
        tokens: What stands before and behind each output.
    """

    def __init__(self, runs: Sequence[Run], tokens: Tokens) -> None:
        agents = {run.agent for run in runs}
        self._own = {agent: _history([run for run in runs if run.agent == agent], tokens) for agent in agents}
        self._all = _history(runs, tokens) if len(agents) > 1 else next(iter(self._own.values()), None)
        run = self._all.to_merge()[0] if self._all else None
        self.patterns = PatternIndex(run) if run else None
        self.size = len(self._all) if self._all else 0

    def of(self, agent: str) -> list[History]:
        """As `Histories.of` gives them."""
        own = self._own.get(agent)
        if own is None or self._all is None:
            # An agent that was never heard: the tenant's history is all there is, and is nobody's own.
            return [History("tokens", 1), self._all] if self._all else []
        return [own] if own is self._all else [own, self._all]


def _history(runs: Sequence[Run], tokens: Tokens) -> History:
    history = History("tokens", 1 << 22)
    for run in runs:
        before: Sequence[int] = ()
        for event in run.events:
            if isinstance(event, Message):
                output = [*event.text, *event.calls, tokens.end]
                history.append([*before[-4:], *tokens.header], output)
                before = output
            else:
                before = event
    sorted_part, fresh, limit = history.to_merge()
    history.install(merge(sorted_part, fresh, limit), len(fresh))
    return history


def contestants(past: Past, learned: Sequence[EvidenceWeights]) -> list[Contestant]:
    """All that are compared, with at most 7 and at most 15 drafted tokens.

    Args:
        past: What they may draft from, beside the text's own context.
        learned: One for each of ours. None learns from what another one has already seen.
    """
    found, unused = [], iter(learned)
    for depth in DEPTHS:
        found += [
            Contestant("prompt look-up", depth, 1, lambda _: PromptLookup()),
            *(
                Contestant(name, depth, branches, lambda _, factor=factor: SuffixDecoding(past.patterns, factor))  # type: ignore[misc]
                for name, branches, factor in _SUFFIX
            ),
            *(
                _ours(name, depth, branches, past, next(unused))
                for name, branches in (("Forerun", 1), ("Forerun, tree", BRANCHES))
            ),
        ]
    return found


def _ours(name: str, depth: int, branches: int, past: Past, weights: EvidenceWeights) -> Contestant:
    return Contestant(name, depth, branches, lambda agent: RecallDrafter(weights, past.of(agent), limit=_LIMIT))


def measure(
    runs: Sequence[Run], share: float, tokens: Tokens, contenders: Sequence[Contestant], *, seed: int, until: float
) -> list[Passes]:
    """Passes of each contender on a random share of the messages; the others are context.

    Runs come in random order, and none begins after the monotonic time `until`: a slow machine scores fewer of them.
    """
    chance, results = random.Random(seed), [Passes() for _ in contenders]
    for run in chance.sample(runs, len(runs)):
        if time.monotonic() > until:
            break
        chosen = [isinstance(event, Message) and chance.random() < share for event in run.events]
        if not any(chosen):
            continue
        last = max(number for number, one in enumerate(chosen) if one)
        for contender, result in zip(contenders, results, strict=True):
            drafter = contender.start(run.agent)
            for event, one in zip(run.events[: last + 1], chosen, strict=False):
                if not isinstance(event, Message):
                    drafter.extend(event)
                    continue
                drafter.extend(tokens.header)
                output = [*event.text, *event.calls, tokens.end]
                if one:
                    _decode(drafter, contender, output, len(event.text), result)
                else:
                    drafter.extend(output)
    return results


def _decode(drafter: Drafter, contender: Contestant, output: list[int], text: int, result: Passes) -> None:
    at = 0
    while at < min(len(output), _MESSAGE_TOKENS):
        began_ns = time.thread_time_ns()
        draft = drafter.propose(contender.depth, contender.branches)
        result.microseconds.append((time.thread_time_ns() - began_ns) / 1_000.0)
        assert len(draft) <= contender.depth, f"{contender.name} drafted {len(draft)} tokens"
        came = output[at : at + accepted(draft, output[at:-1]) + 1]
        drafter.extend(came)
        part = "text" if at < text else "calls"
        result.tokens[part] += len(came)
        result.passes[part] += 1
        result.expected += draft.expected + 1.0
        at += len(came)
    drafter.extend(output[at:])


def accepted(draft: Draft, target: Sequence[int]) -> int:
    """Drafted tokens that a greedy target accepts. The walk of `verify`, when the output is known."""
    node, count = ROOT, 0
    for number, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent == node and count < len(target) and token == target[count]:
            node, count = number, count + 1
    return count
