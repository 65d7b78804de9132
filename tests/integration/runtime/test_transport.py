"""Traces through several services, and messages around the real size limit, over sockets."""

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from forerun.core import limits
from forerun.runtime.errors import ErrorReason, ResourceExhausted
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import rpc_errors
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import SpanName, Tracing

SERVICE = "test.v1.Chain"


class Collected(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


def registration(once: Any, stream: Any) -> Any:
    def register(server: Any) -> None:
        handlers: dict[str, Any] = {
            "Once": grpc.unary_unary_rpc_method_handler(once),
            "Stream": grpc.stream_stream_rpc_method_handler(stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    return register


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def echo_stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


def identity(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.get_span_context()
    assert context is not None
    return context


async def test_one_trace_through_services_and_streams(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Collected()
    tracing = Tracing("test", exporter)

    def network() -> GrpcNetwork:
        return GrpcNetwork(Inbound(authenticator=None, metrics=Metrics("orchestrator"), tracing=tracing))

    back, front, client = network(), network(), network()
    far = await back.serve("far", "127.0.0.1:0", [registration(echo, echo_stream)], services=[SERVICE])
    to_far: Any = front.channel(far.address).unary_unary(f"/{SERVICE}/Once")

    async def forward(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            with tracing.span(SpanName.CALL):
                yield await to_far(request, timeout=5)

    near = await front.serve("near", "127.0.0.1:0", [registration(echo, forward)], services=[SERVICE])
    with tracing.span(SpanName.STEP):
        call: Any = client.channel(near.address).stream_stream(f"/{SERVICE}/Stream")()
        await call.write(b"x")
        assert await call.read() == b"x"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        cut: Any = client.channel(near.address).stream_stream(f"/{SERVICE}/Stream")()
        await cut.write(b"y")
        assert await cut.read() == b"y"
        cut.cancel()
    for each in (client, front, back):
        await each.close()
    await near.stop(1)
    await far.stop(1)
    assert await tracing.close(5)

    spans = {identity(span).span_id: span for span in exporter.spans}
    assert len({identity(span).trace_id for span in exporter.spans}) == 1
    assert sorted(span.name for span in exporter.spans) == [
        "execute_tool",
        "execute_tool",
        "rpc",
        "rpc",
        "rpc",
        "rpc",
        "step",
    ]
    for span in exporter.spans:
        if span.name == "execute_tool":
            parent = span.parent
            assert parent is not None
            assert spans[parent.span_id].name == "rpc"
            served = [
                child for child in exporter.spans if child.parent and child.parent.span_id == identity(span).span_id
            ]
            assert [child.name for child in served] == ["rpc"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("megabytes", [3.9, 4.0, 4.1, 30])
async def test_sizes_around_the_limit_work_or_give_one_clear_error(megabytes: float) -> None:
    calls = 0

    async def counted(request: bytes, context: Any) -> bytes:
        nonlocal calls
        calls += 1
        return b"x" * int(request) if len(request) < 20 else b"ok"

    network = GrpcNetwork(Inbound(authenticator=None, metrics=Metrics("orchestrator"), tracing=Tracing("test")))
    server = await network.serve("s", "127.0.0.1:0", [registration(counted, echo_stream)], services=[SERVICE])
    once: Any = network.channel(server.address).unary_unary(f"/{SERVICE}/Once")
    stream: Any = network.channel(server.address).stream_stream(f"/{SERVICE}/Stream")
    size = int(megabytes * limits.MIB)
    fits = size <= limits.MESSAGE_BYTES

    async def streamed() -> int:
        call = stream(timeout=20)
        await call.write(b"x" * size)
        return len(await call.read())

    attempts = [once(b"x" * size, timeout=20), once(b"%d" % size, timeout=20), streamed()] if fits else []
    for attempt in attempts:
        await attempt
    if not fits:
        for way in (lambda: once(b"x" * size, timeout=20), lambda: once(b"%d" % size, timeout=20), streamed):
            with pytest.raises(ResourceExhausted) as raised, rpc_errors():
                await way()
            assert raised.value.reason is ErrorReason.MESSAGE_TOO_LARGE
            assert raised.value.metadata == {
                "limit": "MESSAGE_BYTES",
                "size_bytes": str(size),
                "limit_bytes": str(limits.MESSAGE_BYTES),
            }
    assert calls == (2 if fits else 1)
    await network.close()
    await server.stop(0)
