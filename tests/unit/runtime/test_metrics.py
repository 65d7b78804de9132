import asyncio
import re
import urllib.request
from collections.abc import Callable

import pytest

from forerun.runtime import metrics_table as m
from forerun.runtime.errors import Bug, FailedPrecondition
from forerun.runtime.metrics import Metrics, MetricsServer
from forerun.runtime.metrics_table import METRICS, Kind


def quantile(metrics: Metrics, metric: m.Metric, q: float) -> float:
    """What Prometheus's histogram_quantile gives."""
    buckets = [
        (float("inf") if sample.labels["le"] == "+Inf" else float(sample.labels["le"]), sample.value)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"{metric.name}_bucket"
    ]
    rank = q * buckets[-1][1]
    lower, below = 0.0, 0.0
    for upper, count in buckets:
        if count >= rank:
            return lower + (upper - lower) * (rank - below) / (count - below)
        lower, below = upper, count
    raise AssertionError("unreachable")


def series(metrics: Metrics, name: str) -> int:
    return sum(sample.name == name for family in metrics.registry.collect() for sample in family.samples)


def test_names_are_unique_and_say_unit_and_kind() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"forerun_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith(f"_{metric.unit}")
        if metric.unit in ("seconds", "bytes"):
            assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}")
        assert metric.meaning.endswith(".")
        for label in metric.labels:
            assert bool(label.values) != bool(label.bound), f"{label.name}: a closed set or a bound"


def test_closed_counters_start_at_zero() -> None:
    metrics = Metrics("orchestrator")
    assert (
        metrics.registry.get_sample_value("forerun_governor_decisions_total", {"kind": "tool", "reason": "cold"}) == 0
    )
    outcomes = {"kind": "tool", "tool": "other", "outcome": "ready"}
    assert metrics.registry.get_sample_value("forerun_speculations_total", outcomes) == 0
    metrics.add(m.SPECULATIONS, kind="tool", tool="search", outcome="miss")
    assert metrics.registry.get_sample_value("forerun_speculations_total", outcomes | {"tool": "search"}) == 0
    assert metrics.value(m.SPECULATIONS, kind="tool", tool="search", outcome="miss") == 1


def test_who_asks_for_one_name_only_gets_its_zeros_too() -> None:
    metrics = Metrics("orchestrator")
    metrics.add(m.SPECULATIONS, kind="tool", tool="search", outcome="miss")
    one = metrics.registry.restricted_registry(["forerun_speculations_total"])
    values = {tuple(s.labels.values()): s.value for family in one.collect() for s in family.samples}
    names = [("tool", "search", "miss"), ("tool", "search", "ready"), ("tool", "other", "ready")]
    assert [values[name] for name in names] == [1, 0, 0]


def test_a_tool_that_one_metric_knows_starts_at_zero_in_all_others() -> None:
    metrics = Metrics("orchestrator")
    metrics.add(m.AUTHORITATIVE_CALLS, tool="search", served="direct")
    value = metrics.registry.get_sample_value(
        m.SPECULATIONS.name, {"kind": "tool", "tool": "search", "outcome": "miss"}
    )
    assert value == 0.0
    for number in range(m.TOOL.bound * 2):
        metrics.add(m.AUTHORITATIVE_CALLS, tool=f"tool-{number}", served="direct")
    family = next(one for one in metrics.registry.collect() if one.name == "forerun_speculable_calls")
    assert len({sample.labels["tool"] for sample in family.samples}) == m.TOOL.bound + 1


def test_labels_stay_within_their_sets_and_bounds() -> None:
    metrics = Metrics("orchestrator")
    for number in range(300):
        metrics.add(m.SPECULATIONS, kind="tool", tool=f"made-up-{number}", outcome="ready")
        metrics.add(m.GOVERNOR_DECISIONS, kind="tool", reason=f"reason {number}")
    assert series(metrics, "forerun_speculations_total") <= m.SPECULATIONS.series_bound()
    assert metrics.value(m.SPECULATIONS, kind="tool", tool="other", outcome="ready") == 300 - m.TOOL.bound
    assert metrics.value(m.GOVERNOR_DECISIONS, kind="tool", reason="other") == 300


def test_label_order_does_not_matter_and_wrong_labels_are_a_bug() -> None:
    metrics = Metrics("orchestrator")
    metrics.add(m.AUTHORITATIVE_CALLS, served="ready", tool="t")
    metrics.add(m.AUTHORITATIVE_CALLS, tool="t", served="ready")
    assert metrics.value(m.AUTHORITATIVE_CALLS, tool="t", served="ready") == 2
    with pytest.raises(Bug, match="has the labels"):
        metrics.add(m.AUTHORITATIVE_CALLS, tool="t")


def test_swapped_values_do_not_hit_each_others_series() -> None:
    metrics = Metrics(None)
    metrics.add(m.AUTHORITATIVE_CALLS, tool="ready", served="memo")
    metrics.add(m.AUTHORITATIVE_CALLS, served="ready", tool="memo")
    assert metrics.value(m.AUTHORITATIVE_CALLS, tool="ready", served="memo") == 1
    assert metrics.value(m.AUTHORITATIVE_CALLS, tool="memo", served="ready") == 1


def test_a_service_exposes_only_its_own() -> None:
    metrics = Metrics("snapshots")
    assert "forerun_speculations" not in {family.name for family in metrics.registry.collect()}
    with pytest.raises(Bug, match="forerun_speculations_total is not exposed"):
        metrics.add(m.SPECULATIONS, kind="tool", tool="t", outcome="ready")


def test_buckets_fit_from_our_own_overhead_to_slow_tools() -> None:
    metrics = Metrics(None)
    for _ in range(100):
        metrics.observe(m.STEP_SECONDS, 40.0)
        metrics.observe(m.PREDICTION_SECONDS, 0.002)
    assert 30 <= quantile(metrics, m.STEP_SECONDS, 0.99) <= 60
    assert quantile(metrics, m.PREDICTION_SECONDS, 0.5) < 0.005
    assert m.LATENCY_BUCKETS_SECONDS[0] == 0.0005
    assert m.LATENCY_BUCKETS_SECONDS[-1] == 600


def test_gauges_move() -> None:
    metrics = Metrics("orchestrator")
    metrics.set(m.SESSIONS_OPEN, 5)
    metrics.change(m.SESSIONS_OPEN, -2)
    assert metrics.value(m.SESSIONS_OPEN) == 3


def get(url: str, accept: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=5) as response:
        text: str = response.read().decode()
        return text


async def test_the_endpoint_serves_text_and_exemplars() -> None:
    metrics = Metrics("orchestrator")
    metrics.observe(m.STEP_SECONDS, 1.0, trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    server = MetricsServer(metrics, "127.0.0.1:0")
    await server.start()
    fetch: Callable[[str], object] = lambda accept: get(f"http://{server.address}/metrics", accept)  # noqa: E731
    try:
        assert "forerun_step_seconds_count 1.0" in str(await asyncio.to_thread(fetch, "text/plain"))
        open_metrics = str(await asyncio.to_thread(fetch, "application/openmetrics-text; version=1.0.0"))
        assert '# {trace_id="0af7651916cd43dd8448eb211c80319c"} 1.0' in open_metrics
        with pytest.raises(FailedPrecondition, match="metrics_address"):
            await MetricsServer(metrics, server.address).start()
    finally:
        await server.stop(5)
    with pytest.raises(FailedPrecondition):
        await MetricsServer(metrics, "no port here").start()
