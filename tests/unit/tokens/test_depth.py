"""The depth controller: the table decides, speculation never harms, nothing flaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from forerun.core.errors import CoreError
from forerun.core.tokens.depth import Acceptance, DepthController, DepthReason, Load, StepCosts, StepTable
from forerun.core.tokens.depth.controller import PRIOR_CROSSOVER_BATCH
from forerun.core.tokens.depth.reading import PRIOR_ANSWER_TOKENS
from tests.bench.drafts_ramp import BATCHES, MACHINES, Machine, ramp, steady

EMPTY = StepTable({})


def load(batch: int = 1, *, pair: str = "target+draft", model: bool = True, answer: int | None = None) -> Load:
    return Load(pair=pair, batch=batch, context=500, draft_model=model, answer=answer)


def table(seconds: Callable[[int, int], float], pair: str = "target+draft") -> StepTable:
    cells = {(batch, 1_024): StepCosts({depth: seconds(batch, depth) for depth in range(8)}) for batch in BATCHES}
    return StepTable({pair: cells})


def teach(controller: DepthController, pair: str, rate: float, drafts: int = 600) -> None:
    """Outcomes with exactly this share of accepted tokens at the first place."""
    for number in range(drafts):
        controller.observe(pair, 1, 1 if (number * rate) % 1.0 + rate >= 1.0 else 0)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.8, 0.95])
def test_the_ramp_is_never_harmed_and_close_to_the_best_fixed_depth(machine: Machine, rate: float) -> None:
    for level in ramp(machine, steady(rate), passes=400):
        assert level.controller >= 0.95 * level.off, level.batch
        assert level.controller >= 0.97 * level.best, (level.batch, level.depths[-20:])


def test_a_controller_that_only_looks_at_acceptance_would_harm() -> None:
    """The ramp is hard enough: the depth that is best at batch 1 costs more than 5 % at batch 64."""
    levels = ramp(MACHINES[1], steady(0.8))
    deep = max(levels[0].fixed, key=levels[0].fixed.__getitem__)
    crowded = next(level for level in levels if level.batch == 64)
    assert crowded.fixed[deep] < 0.95 * crowded.off


def test_batch_and_acceptance_turn_it_on_and_off() -> None:
    """Case F1: acceptance 0.8 at batch 1: on; 0.5 at batch 64, and 0.1: off, and nothing flaps."""
    rates = steady(0.8) | {64: 0.5}
    levels = ramp(MACHINES[1], rates, passes=500)
    assert min(levels[0].depths[100:]) > 0
    crowded = next(level for level in levels if level.batch == 64)
    assert sum(depth > 0 for depth in crowded.depths[100:]) <= 400 // 32
    hopeless = ramp(MACHINES[1], steady(0.1), passes=500)
    for level in hopeless[1:]:
        assert sum(depth > 0 for depth in level.depths) <= 500 // 32 + 1
    for level in levels:
        changes = sum(one != two for one, two in pairwise(level.depths[100:]))
        probes = 2 * sum(depth == 1 for depth in level.depths)
        assert changes <= 8 + (probes if level.batch == 64 else 0), level.batch


def test_off_means_no_draft_at_all_until_a_probe() -> None:
    controller = DepthController(table(lambda batch, depth: 1.0 + depth), most=7)
    decisions = [controller.decide(load(), 7) for _ in range(2_000)]
    probes = [decision for decision in decisions if decision.reason is DepthReason.PROBE]
    assert {decision.depth for decision in decisions if decision.reason is not DepthReason.PROBE} == {0}
    assert 5 <= len(probes) <= 2_000 * 0.005 + 1, "a probe that doubles a step may come every 200 passes"
    assert not any(decision.score for decision in decisions), "scoring a draft model would run it"


def test_probes_that_turn_out_expensive_are_rarer() -> None:
    controller = DepthController(table(lambda batch, depth: 1.0 + depth), most=7)
    teach(controller, "target+draft", 0.0)
    passes, lost = 8_000, 10.0
    probes = 0
    for _ in range(passes):
        if controller.decide(load(), 7).reason is DepthReason.PROBE:
            probes += 1
            controller.probed("target+draft", lost)
    assert 2 <= probes <= 1 + passes * 0.005 / lost, "after the first one it is known what they cost"


def test_a_probe_waits_until_the_passes_before_it_have_paid_for_what_it_has_to_read() -> None:
    passes, catch_up = 100_000, 100.0
    for steps in (EMPTY, table(lambda batch, depth: 1.0 + depth)):
        controller = DepthController(steps, most=7)
        teach(controller, "target+draft", 0.0)
        decisions = [controller.decide(replace(load(), catch_up=catch_up), 7) for _ in range(passes)]
        probes = sum(decision.reason is DepthReason.PROBE for decision in decisions)
        assert 2 <= probes <= passes * 0.005 / catch_up
        # A text with little to read need not wait for it.
        later = [controller.decide(load(), 7).reason for _ in range(300)]
        assert DepthReason.PROBE in later


def test_a_probe_finds_that_acceptance_has_come_back() -> None:
    controller = DepthController(table(lambda batch, depth: 1.0 + 0.3 * depth), most=7)
    teach(controller, "target+draft", 0.0)
    assert controller.decide(load(), 7).depth == 0
    for _ in range(20_000):
        decision = controller.decide(load(), 7)
        controller.observe("target+draft", decision.depth, decision.depth)
        if decision.reason is DepthReason.TABLE and decision.depth > 1:
            return
    pytest.fail("it never came back")


def test_free_drafts_are_scored_while_off_and_come_back_without_a_probe() -> None:
    # A machine on which each drafted token costs as much as a pass.
    controller = DepthController(table(lambda batch, depth: 1.0 + 0.5 * depth, "target"), most=7)
    teach(controller, "target", 0.0)
    off = [controller.decide(load(pair="target", model=False), 7) for _ in range(80)]
    assert {decision.depth for decision in off} == {0}
    assert sum(decision.score for decision in off) == 10
    for _ in range(500):
        controller.observe("target", 7, 7)
    assert controller.decide(load(pair="target", model=False), 7).depth > 0


def test_the_cap_of_the_governor_is_obeyed() -> None:
    controller = DepthController(table(lambda batch, depth: 1.0), most=7)
    teach(controller, "target+draft", 0.9)
    assert controller.decide(load(), 7).depth == 7
    assert controller.decide(load(), 2).depth == 2
    assert controller.decide(load(), 0) == controller.decide(load(), -1)
    assert controller.decide(load(), 0).reason is DepthReason.CAPPED
    assert DepthController(table(lambda batch, depth: 1.0), most=3).decide(load(), 7).depth <= 3


def test_only_measured_depths_are_chosen() -> None:
    costs = StepCosts({0: 1.0, 3: 1.0, 5: 1.0, 15: 1.0})
    controller = DepthController(StepTable({"target": {(1, 1_024): costs}}), most=7)
    for _ in range(200):
        controller.observe("target", 5, 5)
    assert controller.decide(load(pair="target", model=False), 7).depth == 5
    assert controller.decide(load(pair="target", model=False), 4).depth == 3


def test_a_small_gain_is_no_reason_to_change() -> None:
    seconds = {0: 1.0, 1: 1.3, 2: 1.6}
    controller = DepthController(StepTable({"target": {(1, 1_024): StepCosts(dict(seconds))}}), most=7)
    teach(controller, "target", 0.5)
    first = controller.decide(load(pair="target", model=False), 7).depth
    gained = controller.acceptance("target").tokens_per_pass(2) / controller.acceptance("target").tokens_per_pass(first)
    near = seconds[first] * gained / 1.01  # depth 2 promises one per cent more
    controller.table = StepTable({"target": {(1, 1_024): StepCosts(seconds | {2: near})}})
    assert controller.decide(load(pair="target", model=False), 7).depth == first
    controller.table = StepTable({"target": {(1, 1_024): StepCosts(seconds | {2: near * 0.95})}})
    assert controller.decide(load(pair="target", model=False), 7).depth == 2


def test_a_new_table_decides_at_once() -> None:
    controller = DepthController(table(lambda batch, depth: 1.0), most=7)
    teach(controller, "target+draft", 0.7)
    assert controller.decide(load(), 7).depth == 7
    seen = controller.acceptance("target+draft").rate
    controller.reload(table(lambda batch, depth: 1.0 + depth))
    assert controller.decide(load(), 7).depth == 0
    assert controller.acceptance("target+draft").rate == seen


def test_the_prior_is_only_for_a_draft_model_that_was_not_measured() -> None:
    controller = DepthController(EMPTY, most=7)
    assert controller.decide(load(1), 7).depth > 0
    assert controller.decide(load(1), 7).reason is DepthReason.PRIOR
    assert controller.decide(load(PRIOR_CROSSOVER_BATCH), 7).depth == 0
    assert controller.decide(load(PRIOR_CROSSOVER_BATCH - 1), 7).depth > 0
    assert controller.decide(load(1, answer=PRIOR_ANSWER_TOKENS - 1), 7).depth == 0
    teach(controller, "target+draft", 0.4)
    assert controller.decide(load(1), 7).depth == 0
    # None of it holds for drafts that cost no model ...
    free = DepthController(EMPTY, most=7)
    teach(free, "target", 0.4)
    decision = free.decide(load(1, pair="target", model=False, answer=10), 7)
    assert decision.depth > 0
    assert decision.reason is DepthReason.NOMINAL
    # ... nor where a table was measured.
    measured = DepthController(table(lambda batch, depth: 1.0), most=7)
    teach(measured, "target+draft", 0.4)
    assert measured.decide(load(64, answer=10), 7).depth > 0


def test_loads_fall_into_the_next_larger_measured_bucket() -> None:
    cells = {(batch, context): StepCosts({0: float(batch)}) for batch in (1, 8) for context in (512, 4_096)}
    steps = StepTable({"target": cells})
    assert steps.bucket("target", 1, 100) == (1, 512)
    assert steps.bucket("target", 2, 513) == (8, 4_096)
    assert steps.bucket("target", 99, 99_999) == (8, 4_096)
    assert steps.bucket("other", 1, 1) is None


def test_tables_survive_json_and_damaged_ones_are_refused() -> None:
    steps = MACHINES[1].table()
    assert StepTable.from_json(steps.as_json()) == steps
    for row in ({"pair": "x", "batch": 1, "context": 1, "seconds": {"1": 1.0}}, {"pair": "x"}, {"seconds": 3},
                {"pair": "x", "batch": 1, "context": 1, "seconds": {"0": float("nan")}}):  # fmt: skip
        with pytest.raises(CoreError) as refused:
            StepTable.from_json({"version": 1, "rows": [row]})
        assert refused.value.reason == "invalid_step_table"
    others: list[Any] = [[], 3, None, {"version": 1, "rows": 3}, {"version": 1, "rows": [3]}]
    for whole in others:
        with pytest.raises(CoreError) as refused:
            StepTable.from_json(whole)
        assert refused.value.reason == "invalid_step_table"
    with pytest.raises(CoreError, match="version 2"):
        StepTable.from_json({"version": 2, "rows": []})


def test_acceptance_by_position() -> None:
    """The first token is hard, those behind it are easy: a mean over all positions would promise too little."""
    acceptance = Acceptance()
    for number in range(4_000):
        acceptance.observe(4, 4 if number % 2 else 0)
    assert acceptance.tokens_per_pass(0) == 1.0
    assert acceptance.tokens_per_pass(4) == pytest.approx(3.0, abs=0.15)


def test_acceptance_notices_a_change_soon() -> None:
    acceptance = Acceptance()
    for _ in range(2_000):
        acceptance.observe(1, 1)
    for _ in range(100):
        acceptance.observe(1, 0)
    assert acceptance.rate < 0.3, "a plain average of this weight would still say 0.68"
