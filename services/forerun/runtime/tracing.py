"""Spans, and the trace context that travels with calls and messages.

Context is passed explicitly: a span's `context` is the W3C `traceparent` text, which goes into gRPC metadata, message
headers and the environment of a sandbox as it is. Within one task the network's guard keeps it in a context variable
that is only ever set, never detached, so streams that end in another task cannot complain. Spans are exported only when
an OTLP endpoint is configured; the context is passed on even when it is not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from forerun.runtime.redaction import Value, redacted

TRACE_HEADER: Final = "traceparent"

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


class Span:
    """A piece of work that is being traced. Ends with `end`, once."""

    __slots__ = ("_span", "context")

    def __init__(self, context: str | None, span: trace.Span | None) -> None:
        self.context = context
        self._span = span

    def set(self, key: str, value: Value) -> None:
        """Adds an attribute; keys are those of the redaction's allow list."""
        if self._span is not None:
            self._span.set_attribute(key, value)

    def end(self, *, failed: bool = False) -> None:
        """Ends the span."""
        if self._span is not None:
            if failed:
                self._span.set_status(Status(StatusCode.ERROR))
            self._span.end()


class Tracing:
    """Makes spans and exports them.

    Args:
        service: Name of the service, for the resource.
        exporter: Where spans go, behind the redaction; None exports nothing and passes contexts on.
        sample_ratio: Share of traces that are recorded, decided where a trace begins.
    """

    def __init__(self, service: str, exporter: SpanExporter | None = None, *, sample_ratio: float = 1.0) -> None:
        self._provider: TracerProvider | None = None
        if exporter is not None:
            self._provider = TracerProvider(
                resource=Resource({"service.name": f"forerun-{service}"}),
                sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
                shutdown_on_exit=False,  # `close` flushes with a bound; the library's exit hook has none
            )
            self._provider.add_span_processor(BatchSpanProcessor(RedactingExporter(exporter)))
            self._tracer = self._provider.get_tracer("forerun")

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
        if self._provider is None:
            return Span(parent, None)
        parent_context = _parse(parent)
        span = self._tracer.start_span(
            name.value,
            context=trace.set_span_in_context(NonRecordingSpan(parent_context)) if parent_context else None,
            links=[Link(context) for context in map(_parse, links) if context is not None],
            attributes=attributes,
        )
        return Span(_format(span.get_span_context()), span)

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
        if self._provider is None:
            return True
        provider, loop = self._provider, asyncio.get_running_loop()
        flushed = asyncio.Event()

        def flush() -> None:
            provider.force_flush(int(timeout_seconds * 1000))
            provider.shutdown()
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
    if context is None or len(context) != 55 or context[:3] != "00-" or context[35] != "-" or context[52] != "-":
        return None
    try:
        trace_id, span_id, flags = int(context[3:35], 16), int(context[36:52], 16), int(context[53:], 16)
    except ValueError:
        return None
    if trace_id == 0 or span_id == 0:
        return None
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))


def _format(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
