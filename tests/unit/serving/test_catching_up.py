"""A draft model with long prompts to read, in the served loop with declared times: no harm, and no text differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import pytest

from forerun.core.tokens.depth import PROBE_TOKENS, SHORT_READ, DepthController, DepthReason, StepCosts, StepTable
from forerun.core.tokens.evidence import EvidenceWeights
from forerun.core.tokens.noise import fraction, key
from forerun.core.tokens.recall import RecallDrafter
from forerun.serving.backend.drafts import ALONE, MODEL, RECALL, WITH_DRAFT, Depth, Drafts, ModelDrafter
from forerun.serving.backend.loop import Proposal
from forerun.serving.profile import StepTimes, ToyEngine, read_profile
from tests.integration.serving.inprocess import Decoded, Pair, declared, decode

LONG = 1_500


@cache
def pair() -> Pair:
    """The toy pair with a draft model that reads 2,000 tokens a second: a long prompt takes 40 passes of the target."""
    profile = read_profile("toy")
    assert isinstance(profile.draft, ToyEngine)
    times = StepTimes(fixed_seconds=0.002, free_rows=4, row_seconds=0.0005)
    return Pair.of(profile.model_copy(update={"draft": profile.draft.model_copy(update={"times": times})}))


def server(*, measured: bool = True) -> Depth:
    """A server that has decoded nothing yet, with what calibration measures on the pair or without it."""
    verify = {depth: declared(pair().target, 1, depth + 1) for depth in range(8)}
    both = {depth: taken + depth * declared(pair().draft, 1, 1) for depth, taken in verify.items()}
    cells = {ALONE: {(1, 4_096): StepCosts(verify)}, WITH_DRAFT: {(1, 4_096): StepCosts(both)}}
    return Depth(DepthController(StepTable(cells if measured else {}), 7))


def prompt(number: int, tokens: int) -> list[int]:
    return [1 + int(fraction(key(7, number), place) * 62) for place in range(tokens)]


def texts(
    count: int, tokens: int, answer: int, state: Depth | None, *, depth: int | None = None
) -> tuple[float, list[Decoded]]:
    """Declared seconds of texts one after another, without drafts where there is no server's state."""
    given = json.dumps({"max_tokens": answer, "ignore_end": True})
    done = [
        decode(
            pair(), prompt(number, tokens), given, depth=depth if state else 0, model=state is not None, server=state
        )
        for number in range(count)
    ]
    return sum(one.seconds for one in done), done


@pytest.mark.parametrize("measured", [True, False])
def test_long_prompts_before_short_answers_are_not_harmed_by_a_draft_model(measured: bool) -> None:
    off, right = texts(60, LONG, 16, None)
    allowed, found = texts(60, LONG, 16, server(measured=measured))
    assert [one.tokens for one in found] == [one.tokens for one in right]
    assert allowed <= 1.05 * off
    assert sum(one.proposed for one in found) == 0, "nothing was drafted; all that it cost is a little reading"
    careless, _ = texts(60, LONG, 16, server(), depth=3)
    assert careless > 1.5 * off, "reading every prompt would harm, or the test shows nothing"


@pytest.mark.parametrize("measured", [True, False])
def test_short_prompts_before_long_answers_are_drafted_by_the_model(measured: bool) -> None:
    off, right = texts(4, 8, 400, None)
    allowed, found = texts(4, 8, 400, server(measured=measured))
    assert [one.tokens for one in found] == [one.tokens for one in right]
    assert min(one.accepted for one in found) > 0
    assert allowed < 0.8 * off


def test_long_prompts_are_read_once_answers_have_turned_out_long() -> None:
    state = server()
    off, right = texts(6, LONG, 600, None)
    allowed, found = texts(6, LONG, 600, state)
    assert [one.tokens for one in found] == [one.tokens for one in right]
    assert min(one.accepted for one in found[2:]) > 100
    assert allowed < 0.9 * off
    # Such a server does not read for an answer that is bounded to be short.
    _, short = texts(4, LONG, 16, state)
    assert sum(one.proposed for one in short) == 0


class Port:
    """A draft model that remembers what it was asked for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.read: list[int] = []

    def draft(self, keep: int, tokens: Sequence[int], count: int, live: int) -> tuple[list[int], float]:
        self.read.append(len(tokens))
        return [1] * count, self.seconds * len(tokens)

    def close(self) -> None:
        return None


def test_an_unknown_speed_costs_a_bounded_part_of_the_prompt() -> None:
    port = Port(0.1)
    drafts = Drafts(None, ModelDrafter(port), server(), None)
    context = prompt(1, LONG)
    drafts.extend(context)
    for place in range(31):
        proposal = drafts.propose(context, 7, 1, 4_000)
        assert (list(proposal.tokens), proposal.seconds > 0.0) == ([], place == 0)
        if proposal.read:
            drafts.judged(proposal, 0, 0.02)
        drafts.extend([1])
        context = [*context, 1]
    assert port.read == [PROBE_TOKENS], "the first pass told what it costs, and no other one asked"


def test_answers_that_ended_early_say_that_reading_does_not_pay_whatever_the_request_allows() -> None:
    state, port = server(), Port(0.0004)
    state.judged(ModelDrafter(port).read(prompt(1, LONG), PROBE_TOKENS, 1), 0, 0.02, 1)
    assert state.decide_model(1, LONG, 7, LONG, 0, 4_000).depth > 0, "an answer of 100 tokens is assumed at first"
    for _ in range(64):
        drafts = Drafts(None, None, state, None)
        drafts.extend(prompt(1, LONG))
        drafts.extend([1] * 16)
        drafts.close()
    assert state.decide_model(1, LONG, 7, LONG, 0, 4_000).reason is DepthReason.READING


def test_answers_of_free_drafts_leave_nothing_to_a_draft_model() -> None:
    state, port = server(), Port(0.0004)
    state.judged(ModelDrafter(port).read(prompt(1, LONG), PROBE_TOKENS, 1), 0, 0.02, 1)
    for _ in range(64):
        drafts = Drafts(None, None, state, None)
        drafts.extend(prompt(1, LONG))
        for _ in range(25):
            drafts.judged(Proposal([1, 1, 1], RECALL), 3, 0.02)
            drafts.extend([1] * 4)
        drafts.close()
    assert state.decide_model(1, LONG, 7, LONG, 0, 4_000).reason is DepthReason.READING


def test_what_a_probe_has_read_is_not_read_again() -> None:
    port = Port(0.000001)
    drafts = Drafts(None, ModelDrafter(port), server(), None)
    context = prompt(1, LONG)
    drafts.extend(context)
    drafts.judged(drafts.propose(context, 7, 1, 4_000), 0, 0.02)
    assert drafts.propose([*context, 1], 7, 1, 4_000).tokens
    assert port.read == [PROBE_TOKENS, LONG + 1 - PROBE_TOKENS]


def test_drafts_that_cost_no_model_go_on_where_reading_does_not_pay() -> None:
    port, state = Port(0.1), server()
    recall = RecallDrafter(EvidenceWeights(), [], limit=4_096)
    drafts = Drafts(recall, ModelDrafter(port), state, None)
    context = [*range(1, 60)] * 20
    drafts.extend(context)
    first = drafts.propose(context, 7, 1, 4_000)
    assert (first.drafter, first.read) == (MODEL, PROBE_TOKENS)
    drafts.judged(first, 0, 0.02)
    drafts.extend([1])
    second = drafts.propose([*context, 1], 7, 1, 4_000)
    assert (second.drafter, list(second.tokens)[:3]) == (RECALL, [2, 3, 4])
    assert port.read == [PROBE_TOKENS]


def test_a_draft_model_that_has_much_to_catch_up_with_is_asked_only_where_that_pays() -> None:
    state = server()
    state.judged(ModelDrafter(Port(0.1)).read(prompt(1, LONG), PROBE_TOKENS, 1), 0, 0.02, 1)
    for unread, left in ((SHORT_READ, 4_000), (SHORT_READ + 1, 100)):
        decision = state.decide_model(1, LONG, 7, unread, 50, left)
        assert (decision.depth > 0) == (unread == SHORT_READ)
        assert (decision.reason is DepthReason.READING) == (unread > SHORT_READ)
