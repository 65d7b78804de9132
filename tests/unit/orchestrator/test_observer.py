"""What the orchestrator counts and traces follows from what it decides and records."""

from __future__ import annotations

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.core.outcomes import CallStatus, Outcome, Served
from forerun.core.session import Execute
from forerun.orchestrator.observer import Observer
from forerun.runtime import metrics_table as m
from forerun.runtime.metrics import Metrics
from forerun.runtime.tracing import Tracing
from tests.unit.session.driver import prepared


def execute(execution: str, *, speculative: bool) -> Execute:
    return Execute(execution, prepared("get", id=1), speculative, 5.0, "", False, "key")


async def test_a_speculation_is_a_span_linked_to_its_step_and_marked_with_its_outcome() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing("orchestrator", exporter)
    observer = Observer(Metrics("orchestrator"), tracing)
    step = observer.step("S", "agent")
    step.begin(0.0)
    for execution, outcome in (("one", Outcome.READY), ("two", Outcome.MISS)):
        with observer.execution(execute(execution, speculative=True), step.context):
            pass
        entry = LedgerEntry(kind=EntryKind.SPECULATION, tool="get", outcome=outcome, speculation=execution)
        observer.recorded("t", entry)
    step.ask(1.0)
    with observer.execution(execute("three", speculative=False), step.context):
        pass
    step.answered(2.0)
    await tracing.close(5.0)

    spans = exporter.get_finished_spans()
    by_name = {name: [span for span in spans if span.name == name] for name in ("speculation", "step", "execute_tool")}
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    root = by_name["step"][0]
    assert root.context is not None
    for span in (*by_name["speculation"], *by_name["execute_tool"]):
        assert span.parent is not None and span.parent.span_id == root.context.span_id
    for span in by_name["speculation"]:
        assert [link.context.span_id for link in span.links] == [root.context.span_id]
    outcomes = [dict(span.attributes or {})["forerun.outcome"] for span in by_name["speculation"]]
    assert sorted(map(str, outcomes)) == ["miss", "ready"]
    assert not by_name["execute_tool"][0].links


def test_counters_follow_the_ledger() -> None:
    metrics = Metrics("orchestrator")
    observer = Observer(metrics, Tracing("orchestrator"))
    lines = [
        LedgerEntry(kind=EntryKind.SPECULATION, tool="get", outcome=Outcome.READY, saved_seconds=2.0),
        LedgerEntry(kind=EntryKind.SPECULATION, tool="get", outcome=Outcome.MISS, wasted_seconds=3.0),
        LedgerEntry(kind=EntryKind.CALL, tool="get", served=Served.READY, status=CallStatus.OK, speculable=True),
        LedgerEntry(kind=EntryKind.CALL, tool="get", served=Served.MEMO, status=CallStatus.OK, speculable=True),
        LedgerEntry(kind=EntryKind.CALL, tool="set", served=Served.DIRECT, status=CallStatus.OUTCOME_UNKNOWN),
        LedgerEntry(kind=EntryKind.DECISION, tool="get", reason="cold"),
    ]
    for line in lines:
        observer.recorded("t", line)
    assert metrics.value(m.SPECULATIONS, kind="tool", tool="get", outcome="ready") == 1
    assert metrics.value(m.SPECULATIONS, kind="tool", tool="get", outcome="miss") == 1
    assert metrics.value(m.WASTED_SECONDS, kind="tool") == 3.0
    assert metrics.value(m.SAVED_ESTIMATED_SECONDS, kind="tool") == 2.0
    assert metrics.value(m.SPECULABLE_CALLS, tool="get") == 2
    assert metrics.value(m.MEMO_HITS, tool="get") == 1
    assert metrics.value(m.OUTCOME_UNKNOWN) == 1
    assert metrics.value(m.GOVERNOR_DECISIONS, reason="cold", kind="tool") == 1
    totals = observer.totals("t")
    assert (totals.calls, totals.launched, totals.memo_hits, totals.unknown) == (3, 2, 1, 1)
    assert observer.totals("another tenant").calls == 0
