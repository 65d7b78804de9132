"""A served draft model is never asked where what it has to read costs more than its drafts are expected to gain."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.tokens.depth import PROBE_TOKENS, SHORT_READ, DepthController, DepthReason, StepCosts, StepTable
from forerun.serving.backend.drafts import WITH_DRAFT, Depth, Drafts, ModelDrafter

PASS_SECONDS = 0.02


class Port:
    """A draft model with declared times."""

    def __init__(self, token_seconds: float) -> None:
        self.token_seconds = token_seconds
        self.drafted: list[int] = []

    def draft(self, keep: int, tokens: Sequence[int], count: int, live: int) -> tuple[list[int], float]:
        self.drafted.append(count)
        return [1] * count, self.token_seconds * len(tokens)

    def close(self) -> None:
        return None


@settings(max_examples=300, deadline=None)
@given(
    prompt=st.integers(SHORT_READ + 1, 4_000),
    left=st.integers(2, 2_000),
    lengths=st.lists(st.integers(1, 2_000), min_size=64, max_size=64),
    token_seconds=st.floats(1e-6, 1e-1),
    accepted=st.floats(0.0, 1.0),
    draft_seconds=st.floats(1e-4, 2e-2),
)
def test_no_draft_is_asked_for_that_is_expected_to_cost_more_than_it_gains(
    prompt: int, left: int, lengths: list[int], token_seconds: float, accepted: float, draft_seconds: float
) -> None:
    steps = {depth: PASS_SECONDS + depth * draft_seconds for depth in range(8)}
    state = Depth(DepthController(StepTable({WITH_DRAFT: {(1, 8_192): StepCosts(steps)}}), 7))
    for number in range(100):
        state.controller.observe(WITH_DRAFT, 4, round(4 * accepted) if number % 2 else int(4 * accepted))
    for length in lengths:
        state.answers.ended(length, 0)
    port = Port(token_seconds)
    # Another text has told how long reading takes.
    state.judged(ModelDrafter(port).read([1] * PROBE_TOKENS, PROBE_TOKENS, 1), 0, PASS_SECONDS, 1)
    state.read_probe_is_due(1, prompt)
    port.drafted.clear()
    drafts = Drafts(None, ModelDrafter(port), state, None)
    drafts.extend([1] * prompt)
    proposal = drafts.propose([1] * prompt, 7, 1, left)
    likely = sum(min(one, left) for one in lengths) / len(lengths)
    acceptance = state.controller.acceptance(WITH_DRAFT)
    token = min(steps[depth] / acceptance.tokens_per_pass(depth) for depth in steps)
    gain = likely * (PASS_SECONDS - token)
    if prompt * token_seconds >= gain:
        assert port.drafted == []
        assert not proposal.tokens
    elif prompt * token_seconds < 0.9 * gain and token < 0.95 * PASS_SECONDS:
        assert len(proposal.tokens) > 0, "where it pays clearly, it is asked"


def test_the_cases_above_are_of_both_kinds() -> None:
    for seconds, asked in ((1e-6, True), (1e-1, False)):
        state = Depth(DepthController(StepTable({WITH_DRAFT: {(1, 8_192): StepCosts({0: 0.02, 3: 0.022})}}), 7))
        port = Port(seconds)
        state.judged(ModelDrafter(port).read([1] * 200, 200, 1), 0, 0.02, 1)
        decision = state.decide_model(1, 1_000, 7, 1_000, 0, 500)
        assert (decision.depth > 0) is asked
        assert (decision.reason is DepthReason.READING) is not asked
