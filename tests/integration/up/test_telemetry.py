"""What a platform of real processes tells: metrics over HTTP, spans over OTLP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from prometheus_client.parser import text_string_to_metric_families

from forerun.cli.up import SERVICES, Platform
from forerun.client import AsyncClient
from tests.integration.up.toolserver import ToolServer, tool_server

SECRET = "orchid-and-heron"  # the user's words, which no telemetry may hold


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans it is sent."""

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  (the contract's name)
        self.spans += [
            span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
        ]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[trace_pb2.Span]:
        """The spans of one name."""
        return [span for span in self.spans if span.name == name]


@asynccontextmanager
async def collecting(collector: Collector) -> AsyncIterator[str]:
    """Serves a collector; its address."""
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def policy(tools: ToolServer) -> str:
    return f"""
policies:
  - name: test
    mode: MODE_EXACT
    alpha: 1
    lambda_per_second: 4
    minimum_evidence: 2
    tools:
      - tool: look
        effect: EFFECT_READ
        reads: [{{template: "numbers/{{n}}", scope: RESOURCE_SCOPE_SESSION}}]
        speculate: true
servers:
  - name: http
    tools:
      - {{name: look, http: {{method: GET, url: "http://127.0.0.1:{tools.port}/read"}}}}
"""


async def work(platform: Platform) -> None:
    """Sessions of an agent that always looks at the same number, until what it will do is run ahead."""
    async with asyncio.timeout(60), AsyncClient(platform.address, platform.token) as client:
        launched = 0
        while not launched:
            async with client.session("agent") as session:
                await session.user_turn(SECRET)
                await session.model_started()
                await asyncio.sleep(0.2)  # the model thinks
                assert (await session.call_tool("look", {"n": 7})).ok
            assert session.totals is not None
            launched = session.totals.launched


async def scraped(platform: Platform) -> dict[str, dict[str, float]]:
    """For each service the sums of its samples by name."""
    run = json.loads(platform.directory.run_file.read_text())["services"]
    found: dict[str, dict[str, float]] = {}
    async with httpx.AsyncClient() as web:
        for name in SERVICES:
            text = (await web.get(f"http://{run[name]['metrics_address']}/metrics")).text
            assert SECRET not in text
            sums = found[name] = {}
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return found


async def test_a_platform_tells_what_it_does_and_nothing_of_the_content(tmp_path: Path) -> None:
    collector = Collector()
    async with collecting(collector) as address, tool_server() as tools:
        tools.delay_seconds = 0.05
        (tmp_path / "policy.yaml").write_text(policy(tools))
        environment = {f"FORERUN_{name.upper()}_OTLP_ENDPOINT": f"http://{address}" for name in SERVICES}
        async with Platform(tmp_path / "data", tmp_path / "policy.yaml", port=0, environment=environment) as platform:
            await work(platform)
            metrics = await scraped(platform)

    for name in SERVICES:
        assert metrics[name]["process_open_fds"] > 3.0
        assert metrics[name].get("forerun_bus_connected", 1.0) == 1.0  # not every service has a connection
        assert metrics[name]["forerun_event_loop_lag_seconds_count"] > 0.0
    orchestrator = metrics["orchestrator"]
    assert orchestrator["forerun_speculation_enabled"] == 1.0
    assert orchestrator["forerun_speculations_launched_total"] == orchestrator["forerun_speculations_total"] >= 1.0
    assert orchestrator["forerun_bus_appends_total"] == orchestrator["forerun_bus_append_seconds_count"] > 0.0
    assert metrics["predictor"]["forerun_candidates_total"] > 0.0

    steps = {span.span_id: span for span in collector.named("step")}
    speculations = collector.named("speculation")
    assert len(speculations) == orchestrator["forerun_speculations_total"]
    for span in speculations:
        (link,) = span.links
        assert steps[link.span_id].trace_id == span.trace_id == link.trace_id
        assert "forerun.outcome" in {attribute.key for attribute in span.attributes}
    assert collector.named("execute_tool")
    assert SECRET not in "".join(str(span) for span in collector.spans)
