"""Busy or hung: what a model has finished decides, not how long somebody waits for it."""

from __future__ import annotations

import pytest

from forerun.serving.probes import Health, Probe
from forerun.serving.progress import progress_of
from forerun.serving.reporting import exposition, role_of
from forerun.serving.stalls import Stalls

BUSY = Probe("m", Health.BUSY, "Deadline Exceeded")
ANSWERS = Probe("m", Health.ANSWERS)
BOUND = 60.0


def test_a_model_that_neither_answers_nor_gets_on_hangs_after_the_bound() -> None:
    stalls = Stalls(BOUND)
    assert stalls.judge(BUSY, {"m": 7}, 100.0) == BUSY
    assert stalls.judge(BUSY, {"m": 7}, 159.9) == BUSY
    found = stalls.judge(BUSY, {"m": 7}, 160.0)
    assert (found.health, found.reason) == (Health.HUNG, "no answer and no progress for 60 s")
    assert not found.health.serves
    assert stalls.seconds("m", 170.0) == 70.0 and stalls.seconds("other", 170.0) == 0.0


def test_a_model_that_gets_on_is_busy_however_long_nobody_gets_an_answer() -> None:
    stalls = Stalls(BOUND)
    for step in range(100):
        assert stalls.judge(BUSY, {"m": 7 + step}, 50.0 * step) == BUSY


@pytest.mark.parametrize("between", [ANSWERS, Probe("m", Health.FAILS, "x"), Probe("m", Health.DEAD, "x")])
def test_any_answer_begins_the_time_anew(between: Probe) -> None:
    stalls = Stalls(BOUND)
    stalls.judge(BUSY, {"m": 7}, 0.0)
    assert stalls.judge(between, {"m": 7}, 50.0) == between
    assert stalls.judge(BUSY, {"m": 7}, 100.0) == BUSY
    assert stalls.judge(BUSY, {"m": 7}, 160.0).health is Health.HUNG


def test_counters_that_begin_anew_are_progress() -> None:
    stalls = Stalls(BOUND)
    stalls.judge(BUSY, {"m": 7}, 0.0)
    assert stalls.judge(BUSY, {"m": 0}, 61.0) == BUSY


def test_nothing_is_said_of_a_model_whose_work_is_not_known() -> None:
    stalls = Stalls(BOUND)
    assert all(stalls.judge(BUSY, {}, 100.0 * step) == BUSY for step in range(5))


def test_what_waited_for_a_model_that_was_healed_gets_its_time_again() -> None:
    stalls = Stalls(BOUND)
    stalls.judge(BUSY, {"m": 7}, 0.0)
    stalls.begin_anew()
    assert stalls.judge(BUSY, {"m": 7}, 61.0) == BUSY


def test_a_server_that_tells_nothing_hangs_after_the_bound_and_one_that_tells_does_not() -> None:
    stalls = Stalls(BOUND)
    assert not stalls.silent(0.0, tells=False)
    assert not stalls.silent(59.0, tells=False)
    assert stalls.silent(60.0, tells=False)
    assert not stalls.silent(61.0, tells=True)
    assert not stalls.silent(120.0, tells=False)


EXPOSITION = """\
# HELP nv_inference_exec_count Number of model executions performed
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="speculative",version="1"} 900
nv_inference_exec_count{model="target-1",version="1"} 40
nv_inference_count{model="target-1",version="1"} 44
nv_inference_request_failure{model="target-1",reason="CANCELED",version="1"} 5
nv_inference_exec_count{model="chat",version="1"} 3
forerun_target_passes_total{depth="0"} 10
forerun_target_passes_total{depth="7"} 11
forerun_generations_total{end="stop"} 2
forerun_decoding_queue_length 9
nv_cpu_utilization 0.5
vllm:generation_tokens_total{model="target",version="1"} 1.5e+03
nv_inference_exec_count{model="target",version="1"} 70
"""


def test_finished_work_is_read_from_where_it_is_counted_when_it_is_finished() -> None:
    """A request of a decoupled model is counted by the server when it is handed over, a failed one is no work."""
    assert progress_of(EXPOSITION, frozenset({"speculative"})) == {
        "target-1": 84.0,
        "chat": 3.0,
        "speculative": 23.0,
        "target": 70.0,
    }
    assert progress_of(EXPOSITION, frozenset({"target"}))["target"] == 1_500.0
    assert progress_of("", frozenset()) == {}
    assert progress_of(EXPOSITION + 'nv_inference_count{model="target', frozenset()) == {}, "cut off"


def test_all_series_exist_from_the_start_and_models_are_named_by_what_they_are_for() -> None:
    before = exposition({}, {}).splitlines()
    after = exposition({(role_of("target-12"), "hung"): 2}, {"speculative": 3.25}).splitlines()
    assert len(before) == len(after) == 4 + 4 * 3 + 4
    assert set(after) - set(before) == {
        'forerun_model_reloads_total{model="target",found="hung"} 2',
        'forerun_model_stalled_seconds{model="speculative"} 3.250',
    }
