"""Spans and logs: the context survives, content does not leave."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, Status, StatusCode

from forerun.runtime.errors import ErrorReason, Unavailable
from forerun.runtime.logs import configure_logs
from forerun.runtime.redaction import ALLOWED_KEYS, redacted
from forerun.runtime.tracing import RedactingExporter, SpanName, Tracing, current_trace, use_trace

CANARIES = ("ann@example.com", "4111 1111 1111 1111", '{"api_key":"CANARY"}', "Bearer CANARY", "/home/CANARY.txt")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collected(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root, own = logging.getLogger(), logging.getLogger("forerun")
    handlers, level, own_level = list(root.handlers), root.level, own.level
    stream = io.StringIO()
    configure_logs("test", "info", stream=stream)
    yield stream
    root.handlers[:], root.level = handlers, level
    own.setLevel(own_level)


async def test_one_trace_with_parents_links_and_outcomes() -> None:
    exporter = Collected()
    tracing = Tracing("test", exporter)
    with tracing.span(SpanName.STEP) as step:
        speculation = tracing.start(SpanName.SPECULATION, parent=step.context, links=[step.context])
        speculation.set("forerun.outcome", "miss")
        speculation.end()
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(call(tracing))
    assert current_trace() is None
    assert await tracing.close(5)
    by_name = {span.name: span for span in exporter.spans}
    root = identity(by_name["step"])
    assert len(exporter.spans) == 4
    assert {identity(span).trace_id for span in exporter.spans} == {root.trace_id}
    assert all(span.parent is not None and span.parent.span_id == root.span_id for span in exporter.spans[:-1])
    assert by_name["speculation"].attributes == {"forerun.outcome": "miss"}
    assert [link.context.span_id for link in by_name["speculation"].links] == [root.span_id]


def identity(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.get_span_context()
    assert context is not None
    return context


async def call(tracing: Tracing) -> None:
    with tracing.span(SpanName.CALL):
        await asyncio.sleep(0)


async def test_a_remote_parent_is_continued_and_garbage_starts_anew() -> None:
    exporter = Collected()
    tracing = Tracing("test", exporter)
    tracing.start(SpanName.RPC, parent=PARENT).end()
    for garbage in ("", "nonsense", PARENT.replace("0af", "xyz"), "00-" + "0" * 32 + PARENT[35:]):
        tracing.start(SpanName.RPC, parent=garbage).end()
    await tracing.close(5)
    first, *others = exporter.spans
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == PARENT[36:52]
    assert all(span.parent is None for span in others)


async def test_without_an_endpoint_the_context_is_still_passed_on() -> None:
    tracing = Tracing("test")
    use_trace(PARENT)
    with tracing.span(SpanName.CALL) as span:
        assert span.context == current_trace() == PARENT
    assert await tracing.close(1)


async def test_spans_hold_no_content() -> None:
    exporter = Collected()
    tracing = Tracing("test", exporter)
    for canary in CANARIES:
        span = tracing.start(SpanName.CALL, attributes={"gen_ai.tool.name": canary, "gen_ai.prompt": canary})
        for key in ALLOWED_KEYS:
            span.set(key, canary)
        span.end(failed=True)
    await tracing.close(5)
    # What a library puts into a span of its own goes the same way.
    RedactingExporter(exporter).export([foreign(canary) for canary in CANARIES])
    assert len(exporter.spans) == 2 * len(CANARIES)
    exported = "".join(span.to_json() for span in exporter.spans)
    assert not [canary for canary in CANARIES if canary in exported or json.dumps(canary)[1:-1] in exported]
    assert "CANARY" not in exported


def foreign(canary: str) -> ReadableSpan:
    context = SpanContext(1, 1, is_remote=False)
    return ReadableSpan(
        name=canary,
        context=context,
        attributes={"gen_ai.prompt": canary},
        events=[Event(canary, {"exception.message": canary})],
        links=[Link(context, {"x": canary})],
        status=Status(StatusCode.ERROR, canary),
    )


async def test_a_trace_is_sampled_where_it_begins_and_followed_everywhere() -> None:
    exporter = Collected()
    half, never = Tracing("test", exporter, sample_ratio=0.5), Tracing("test", exporter, sample_ratio=0.0)
    roots = [half.start(SpanName.STEP) for _ in range(400)]
    for root in roots:
        never.start(SpanName.CALL, parent=root.context).end()
        root.end()
    assert await half.close(5)
    assert await never.close(5)
    sampled = sum((root.context or "").endswith("-01") for root in roots)
    assert 120 < sampled < 280
    assert sorted(span.name for span in exporter.spans) == sorted(["step", "execute_tool"] * sampled)


async def test_closing_is_bounded_when_the_collector_hangs() -> None:
    hang = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Hanging(Collected):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            asyncio.run_coroutine_threadsafe(hang.wait(), loop).result(10)
            return SpanExportResult.SUCCESS

    tracing = Tracing("test", Hanging())
    tracing.start(SpanName.STEP).end()
    assert not await tracing.close(0.05)
    hang.set()


def test_allowed_values_pass_and_others_are_withheld() -> None:
    assert redacted({"forerun.session": "0190-ab", "forerun.sequence": 7, "forerun.forced": True, "x": 1}) == {
        "forerun.session": "0190-ab",
        "forerun.sequence": 7,
        "forerun.forced": True,
    }
    assert redacted({"forerun.session": "two words", "forerun.sequence": "7"}) == {"forerun.session": "withheld"}
    assert redacted(None) == {}


def test_logs_are_json_lines_with_redacted_fields(log: io.StringIO) -> None:
    logging.getLogger("forerun.x").info(
        "session opened", extra={"fields": {"forerun.session": "s-1", "prompt": CANARIES[0]}}
    )
    line = json.loads(log.getvalue())
    assert (line["message"], line["level"], line["service"]) == ("session opened", "info", "test")
    assert line["fields"] == {"forerun.session": "s-1"}


def test_logs_hold_no_content(log: io.StringIO) -> None:
    for canary in CANARIES:
        try:
            try:
                raise KeyError(canary)
            except KeyError as error:
                raise ExceptionGroup(
                    canary, [ValueError(canary), FileNotFoundError(2, "No such file", canary)]
                ) from error
        except ExceptionGroup:
            logging.getLogger("forerun.x").exception("failed")
        logging.getLogger("library").error("got %s", canary)
        logging.getLogger("library").error(f"got {canary}")
    text = log.getvalue()
    assert not [canary for canary in CANARIES if canary in text or json.dumps(canary)[1:-1] in text]
    assert "CANARY" not in text
    told = json.loads(text.splitlines()[0])["exception"]
    assert told["type"] == "builtins.ExceptionGroup"
    assert told["cause"]["type"] == "builtins.KeyError"
    assert [part["type"] for part in told["group"]] == ["builtins.ValueError", "builtins.FileNotFoundError"]
    assert "test_logs_hold_no_content" in told["stack"][0]


def test_our_own_errors_are_told_in_full(log: io.StringIO) -> None:
    try:
        raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, "the broker does not answer")
    except Unavailable:
        logging.getLogger("forerun.x").exception("failed")
    told = json.loads(log.getvalue())["exception"]
    assert (told["reason"], told["text"]) == ("BROKER_UNAVAILABLE", "the broker does not answer")


def test_the_trace_is_in_the_line(log: io.StringIO) -> None:
    use_trace(PARENT)
    logging.getLogger("forerun.x").warning("slow")
    use_trace(None)
    assert json.loads(log.getvalue())["trace_id"] == PARENT[3:35]
