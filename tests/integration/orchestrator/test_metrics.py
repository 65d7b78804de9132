"""What a platform counts of a small run: what happened has moved, in the service that the table names."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from forerun.client import Call, Mode
from forerun.runtime import metrics_table as m
from forerun.runtime.metrics import Metrics
from forerun.runtime.metrics_table import METRICS, Kind, Metric
from tests.integration.orchestrator.conftest import Stage
from tests.integration.orchestrator.test_loop import chain

# What a run in memory, in which nothing goes wrong and nothing is forked, does not bring about. Each has its own test.
UNMOVED: Final = {
    m.RACES, m.RACES_DIFFERENT, m.OUTCOME_UNKNOWN, m.WASTED_COST, m.EARLY_READS, m.PREEMPTIONS, m.LIMIT_HITS,
    m.RATE_LIMITED, m.SNAPSHOT_SECONDS, m.SNAPSHOT_OPERATIONS, m.SNAPSHOT_BYTES, m.DEAD_LETTERS, m.DROPPED,
    m.TASK_FAILURES, m.AUDITS, m.MODEL_REQUESTS, m.MODEL_TOKENS, m.MODEL_COST, m.MODEL_FIRST_TOKEN_SECONDS, m.ANSWERS,
    m.SECOND_GUESSES, m.SECOND_GUESS_HITS, m.SECOND_GUESS_SECONDS, m.SECOND_GUESS_SITES,
}  # fmt: skip

OF_PROCESSES: Final = {m.BUS_CONNECTED, m.BUS_APPENDS, m.BUS_APPEND_SECONDS, m.LOOP_LAG_SECONDS}
"""What only real processes with a real broker have: see tests/integration/up."""


def samples(metrics: Metrics, metric: Metric) -> float:
    """The sum of a metric's series; for a histogram, how much was measured."""
    name = metric.name + ("_count" if metric.kind is Kind.HISTOGRAM else "")
    return sum(
        sample.value for family in metrics.registry.collect() for sample in family.samples if sample.name == name
    )


def test_what_happens_is_counted(stage: Any) -> None:
    async def play(s: Stage) -> None:
        apps = s.platform.apps
        # A platform in memory has no operator; its own tests look at what it counts.
        counted = [metric for metric in METRICS if apps.keys() & set(metric.services)]
        seen: dict[Metric, float] = dict.fromkeys(counted, 0.0)

        def look() -> None:
            for metric in counted:
                for service in apps.keys() & set(metric.services):
                    seen[metric] = max(seen[metric], samples(apps[service].metrics, metric))

        metrics = apps["orchestrator"].metrics
        assert metrics.value(m.SPECULATION_ENABLED) == 1.0
        for run in range(8):
            await chain(s, 100 * run, 5)
            look()
        async with s.client.session("chain") as session:
            await session.user_turn("begin at 900")
            await session.model_started()
            await asyncio.sleep(0.5)  # what was predicted runs now
            look()
            await session.call_tools([Call("set", {"id": 1}), Call("get", {"id": 1}), Call("get", {"id": 1})])
            await session.call_tool("get", {"id": 1})
        await s.client.set_speculation(on=False, reason="test")
        await asyncio.sleep(1.0)
        assert metrics.value(m.SPECULATION_ENABLED) == 0.0
        look()
        still = {metric.name for metric in counted if not seen[metric]}
        assert still == {metric.name for metric in UNMOVED | OF_PROCESSES}

    stage(play)


def test_counts_of_speculation_agree_with_each_other(stage: Any) -> None:
    async def play(s: Stage) -> None:
        for run in range(8):
            await chain(s, 100 * run, 5)
        await chain(s, 100, 5, mode=Mode.OFF)
        await asyncio.sleep(2.0)
        metrics, predictor = s.platform.apps["orchestrator"].metrics, s.platform.apps["predictor"].metrics
        calls = samples(metrics, m.AUTHORITATIVE_CALLS)
        assert calls == 45
        assert 0.0 < samples(metrics, m.WASTE_CREDITS_EARNED) <= 0.3 * calls + 1e-9
        misses = sum(
            metrics.value(m.SPECULATIONS, kind="tool", tool="get", outcome=outcome)
            for outcome in ("miss", "stale", "preempted", "expired", "failed", "cancelled")
        )
        assert metrics.value(m.WASTE_CREDITS_SPENT) == misses
        assert metrics.value(m.SESSIONS, result="finished") == 9
        assert metrics.value(m.SESSIONS_OPEN) == 0
        assert metrics.value(m.CALL_SITES, state="on") > 0
        judged = {label: predictor.value(m.CALIBRATION, bucket=label, result="same") for label in m.PROBABILITY.values}
        assert sum(judged.values()) > 0 and max(judged, key=lambda label: judged[label]) >= "0.5"

    stage(play)
