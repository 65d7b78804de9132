"""Spans, and the trace context that travels with calls and messages.

Context is passed explicitly: a span's `context` is the W3C `traceparent` text, which goes into gRPC metadata, message
headers and the environment of a sandbox as it is. Within one task the network's guard keeps it in a context variable
that is only ever set, never detached, so streams that end in another task cannot complain. Spans are exported only when
an OTLP endpoint is configured; the context is passed on even when it is not.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from forerun.runtime.clock import Clock, SystemClock
from forerun.runtime.redaction import Value, redacted

TRACE_HEADER: Final = "traceparent"

# As the W3C writes it: version 0, and no id of zeros only.
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_ID: Final = slice(3, 35)
_SPAN_ID: Final = slice(36, 52)
_FLAGS: Final = slice(53, 55)
# A trace is sampled by the lower half of its id, as OpenTelemetry's TraceIdRatioBased does it.
_HALF_OF_AN_ID: Final = 1 << 64
_NANOS: Final = 1_000_000_000
_SCOPE: Final = InstrumentationScope("forerun")
_UNSET: Final = Status(StatusCode.UNSET)
_FAILED: Final = Status(StatusCode.ERROR)

_TRACE: Final[ContextVar[str | None]] = ContextVar("forerun_trace", default=None)


class SpanName(StrEnum):
    """The names of all spans; a closed set, because a name is exported as it is."""

    RPC = "rpc"
    """One incoming gRPC call."""
    STEP = "step"
    """One step of an agent: a model decision and what follows from it."""
    CALL = "execute_tool"
    """One authoritative call, from ask to answer."""
    SPECULATION = "speculation"
    """One speculation, linked to the step that it was made for and marked with its outcome."""


_SPAN_NAMES: Final = frozenset(name.value for name in SpanName)


def current_trace() -> str | None:
    """The `traceparent` of the current task, to be passed on."""
    return _TRACE.get()


def use_trace(context: str | None) -> None:
    """Sets the trace context of the current task and of the tasks it starts from now on."""
    _TRACE.set(context)


@dataclass(slots=True)
class _Record:
    """What is known of a span that is recorded, until it ends.

    Attributes:
        name: Which work it is.
        parent: The `traceparent` above it, or None.
        links: Those of related work.
        attributes: Keys of the redaction's allow list.
        began_ns: Unix time of its start.
    """

    name: SpanName
    parent: str | None
    links: Sequence[str | None]
    attributes: dict[str, Value]
    began_ns: int


class Span:
    """A piece of work that is being traced. Ends with `end`, once.

    Not the SDK's own span: that one costs several times as much, for events, limits and locks that are of no use here.
    """

    __slots__ = ("_finish", "_record", "context")

    def __init__(
        self,
        context: str | None,
        record: _Record | None = None,
        finish: Callable[[str | None, _Record, bool], None] | None = None,
    ) -> None:
        self.context = context
        self._record = record
        self._finish = finish

    def set(self, key: str, value: Value) -> None:
        """Adds an attribute; keys are those of the redaction's allow list."""
        if self._record is not None:
            self._record.attributes[key] = value

    def end(self, *, failed: bool = False) -> None:
        """Ends the span."""
        record, self._record = self._record, None
        if record is not None and self._finish is not None:
            self._finish(self.context, record, failed)


class Tracing:
    """Makes spans and exports them.

    Args:
        service: Name of the service, for the resource.
        exporter: Where spans go, behind the redaction; None exports nothing and passes contexts on.
        sample_ratio: Share of traces that are recorded, decided where a trace begins.
        clock: Tells when spans begin and end; None: that of the system.
    """

    def __init__(
        self,
        service: str,
        exporter: SpanExporter | None = None,
        *,
        sample_ratio: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self._processor: BatchSpanProcessor | None = None
        self._sampled_below = round(sample_ratio * _HALF_OF_AN_ID)
        self._resource = Resource({"service.name": f"forerun-{service}"})
        self._ids = RandomIdGenerator()
        self._clock = clock or SystemClock()
        if exporter is not None:
            self._processor = BatchSpanProcessor(RedactingExporter(exporter))

    def start(
        self,
        name: SpanName,
        *,
        parent: str | None = None,
        links: Sequence[str | None] = (),
        attributes: Mapping[str, Value] | None = None,
    ) -> Span:
        """Starts a span.

        Args:
            name: Which work it is.
            parent: The `traceparent` it belongs under; None starts a new trace.
            links: Contexts of related work; a speculation is linked to the step it was made for.
            attributes: Keys of the redaction's allow list.
        """
        if self._processor is None:
            return Span(parent)
        if parent is not None and _TRACEPARENT.fullmatch(parent):
            trace_id, sampled = parent[_TRACE_ID], bool(int(parent[_FLAGS], 16) & TraceFlags.SAMPLED)
        else:
            number = self._ids.generate_trace_id()
            parent, trace_id, sampled = None, f"{number:032x}", number % _HALF_OF_AN_ID < self._sampled_below
        context = f"00-{trace_id}-{self._ids.generate_span_id():016x}-{sampled:02x}"
        if not sampled:
            return Span(context)
        record = _Record(name, parent, links, dict(attributes or ()), self._now_ns())
        return Span(context, record, self._finished)

    def _finished(self, context: str | None, record: _Record, failed: bool) -> None:
        if self._processor is None:
            return
        span = ReadableSpan(
            name=record.name.value,
            context=_parse(context),
            parent=_parse(record.parent),
            resource=self._resource,
            attributes=record.attributes,
            links=[Link(context) for context in map(_parse, record.links) if context is not None],
            status=_FAILED if failed else _UNSET,
            start_time=record.began_ns,
            end_time=self._now_ns(),
            instrumentation_scope=_SCOPE,
        )
        self._processor.on_end(span)

    def _now_ns(self) -> int:
        return int(self._clock.now() * _NANOS)

    @contextmanager
    def span(
        self,
        name: SpanName,
        *,
        links: Sequence[str | None] = (),
        attributes: Mapping[str, Value] | None = None,
    ) -> Iterator[Span]:
        """A span under the current task's context, current itself meanwhile; an exception marks it as failed."""
        outer = current_trace()
        span = self.start(name, parent=outer, links=links, attributes=attributes)
        use_trace(span.context)
        failed = True
        try:
            yield span
            failed = False
        finally:
            use_trace(outer)
            span.end(failed=failed)

    async def close(self, timeout_seconds: float) -> bool:
        """Flushes what is not exported yet; False when that took longer than the bound and something may be lost."""
        if self._processor is None:
            return True
        processor, loop = self._processor, asyncio.get_running_loop()
        flushed = asyncio.Event()

        def flush() -> None:
            processor.force_flush(int(timeout_seconds * 1000))
            processor.shutdown()  # type: ignore[no-untyped-call]
            if not loop.is_closed():
                loop.call_soon_threadsafe(flushed.set)

        # A daemon thread: an exporter that hangs must not keep the process alive.
        threading.Thread(target=flush, name="forerun-trace-flush", daemon=True).start()
        try:
            async with asyncio.timeout(timeout_seconds):
                await flushed.wait()
        except TimeoutError:
            return False
        return True


class RedactingExporter(SpanExporter):
    """Lets only allowed attributes through: of spans, events, links; no texts of errors.

    Args:
        inner: The exporter behind it.
    """

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Exports what may leave."""
        return self._inner.export([_redacted_span(span) for span in spans])

    def shutdown(self) -> None:
        """Ends the exporter behind it."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flushes the exporter behind it."""
        return self._inner.force_flush(timeout_millis)


def otlp_exporter(endpoint: str) -> SpanExporter:
    """An exporter to an OTLP gRPC endpoint, `host:port` or a URL; `https` uses TLS."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"))


def _redacted_span(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=span.name if span.name in _SPAN_NAMES else "other",
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=redacted(span.attributes),
        events=[Event(event.name if event.name in _SPAN_NAMES else "event", redacted(event.attributes), event.timestamp)
                for event in span.events],
        links=[Link(link.context, redacted(link.attributes)) for link in span.links],
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )  # fmt: skip


def _parse(context: str | None) -> SpanContext | None:
    """The span context of a `traceparent`, None for anything that is not one."""
    if context is None or not _TRACEPARENT.fullmatch(context):
        return None
    return SpanContext(
        int(context[_TRACE_ID], 16),
        int(context[_SPAN_ID], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(context[_FLAGS], 16)),
    )
