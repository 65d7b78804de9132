"""The whole service over gRPC: the production `build()` with a bus in memory and real commands."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forerun.runtime import subjects
from forerun.runtime.app import App, Served
from forerun.runtime.auth import Caller, CallToken, on_behalf_of, token_digest
from forerun.runtime.bus import Message
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import (
    Aborted,
    ErrorReason,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import rpc_errors
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.sandbox.app import build
from forerun.sandbox.settings import SandboxSettings
from forerun.v1 import common_pb2, sandbox_pb2, sandbox_pb2_grpc
from tests.integration.sandbox.test_commands import alive

_TOKEN = "t" * 40
_POLICY = """
servers:
  - name: bench
    workspace_seed: {seed}
    tools:
      - name: sh
        input_schema: '{{"type": "object", "properties": {{"script": {{"type": "string"}}}}, "required": ["script"]}}'
        command: {{argv: [/bin/sh, -c, "{{script}}"], environment: {{RUN: "{{session}}"}}}}
      - name: add
        input_schema: '{{"type": "object"}}'
        python: {{entry_point: "tests.integration.sandbox.test_service:add"}}
      - name: pause
        python: {{entry_point: "tests.integration.sandbox.test_service:pause"}}
      - name: large
        python: {{entry_point: "tests.integration.sandbox.test_service:large"}}
"""


def add(a: int, b: int) -> dict[str, int]:
    return {"sum": a + b}


_PAUSED, _GO_ON = threading.Semaphore(0), threading.Semaphore(0)


def pause() -> None:
    _PAUSED.release()
    _GO_ON.acquire(timeout=20)


async def large(megabytes: int) -> bytes:
    return bytes(range(256)) * 4096 * megabytes


class Worker:
    def __init__(self, stub: sandbox_pb2_grpc.SandboxServiceStub, tenant: str = "acme") -> None:
        self.stub = stub
        self.tenant = tenant
        self.metadata = on_behalf_of(Caller(tenant, "ann", "c"))
        self._numbers = 0

    def request(self, tool: str, **more: object) -> sandbox_pb2.ExecuteRequest:
        self._numbers += 1
        arguments = more.pop("arguments", {})
        request = sandbox_pb2.ExecuteRequest(
            execution=f"e{self._numbers}", session="s1", priority=sandbox_pb2.PRIORITY_AUTHORITATIVE,
            timeout_seconds=30.0,
            caller=common_pb2.Caller(tenant=self.tenant, principal="ann", credential_scope="c"),
            action=common_pb2.Action(tool=tool, arguments=json.dumps(arguments).encode()),
        )  # fmt: skip
        request.MergeFrom(sandbox_pb2.ExecuteRequest(**more))  # type: ignore[arg-type]
        return request

    async def execute(
        self, request: sandbox_pb2.ExecuteRequest
    ) -> tuple[bytes, sandbox_pb2.ExecutionFinished, list[sandbox_pb2.ExecuteResponse]]:
        steps = []
        with rpc_errors():
            async for step in self.stub.Execute(request, timeout=60.0, metadata=self.metadata):
                steps.append(step)
        content = b"".join(step.chunk.data for step in steps) + steps[-1].finished.observation.content
        return content, steps[-1].finished, steps

    async def sh(self, script: str, **more: object) -> tuple[str, sandbox_pb2.ExecutionFinished]:
        content, finished, _ = await self.execute(self.request("sh", arguments={"script": script}, **more))
        return content.decode(), finished


@asynccontextmanager
async def running(tmp_path: Path, bus: MemoryBus, *, token: str = _TOKEN, **settings: object) -> AsyncIterator[Worker]:
    seed = tmp_path / "seed"
    seed.mkdir(exist_ok=True)
    (seed / "file").write_text("seeded\n")
    policy, internal = tmp_path / "policy.yaml", tmp_path / "internal"
    policy.write_text(_POLICY.format(seed=seed))
    internal.write_text(_TOKEN)
    app = build(
        SandboxSettings(
            policy_file=policy,
            data_dir=tmp_path / "data",
            internal_token_file=internal,
            worker="w1",
            **settings,  # type: ignore[arg-type]
        ),
        bus=bus,
    )  # fmt: skip
    await app.start()
    try:
        client = GrpcNetwork(
            Inbound(authenticator=None, metrics=Metrics("orchestrator"), tracing=Tracing("test")),
            token=CallToken(token),
        )
        try:
            yield Worker(sandbox_pb2_grpc.SandboxServiceStub(client.channel(address_of(app))))
        finally:
            await client.close()
    finally:
        assert await app.stop(10.0)


def address_of(app: App) -> str:
    return next(part.component.address for part in app.parts if isinstance(part.component, Served))


@pytest.fixture
async def bus() -> MemoryBus:
    return MemoryBus(MemoryBroker(SystemClock()))


@pytest.fixture
async def worker(tmp_path: Path, bus: MemoryBus) -> AsyncIterator[Worker]:
    async with running(tmp_path, bus, authoritative_slots=2, speculative_slots=1) as made:
        yield made


async def test_a_call_from_start_to_end(worker: Worker) -> None:
    content, finished, steps = await worker.execute(worker.request("add", arguments={"a": 2**60, "b": 1}))
    assert content == b'{"sum":%d}' % (2**60 + 1)
    assert finished.status == common_pb2.CALL_STATUS_OK
    assert finished.observation.digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert [step.WhichOneof("step") for step in steps] == ["started", "finished"]
    assert steps[0].started.worker == "w1"
    tools = await worker.stub.ListTools(sandbox_pb2.ListToolsRequest(), timeout=5.0)
    versions = {one.name: one.version for one in tools.tools}
    assert list(versions) == ["add", "large", "pause", "sh"]
    assert steps[0].started.tool_version == versions["add"]


async def test_a_large_answer_is_whole(worker: Worker) -> None:
    content, finished, steps = await worker.execute(worker.request("large", arguments={"megabytes": 5}))
    assert content == bytes(range(256)) * 4096 * 5
    assert finished.observation.content == b""
    assert finished.observation.size_bytes == len(content) == 5 * 2**20
    assert finished.observation.digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert max(step.ByteSize() for step in steps) < 2 * 2**20


async def test_real_writes_are_merged_and_reads_see_them(worker: Worker) -> None:
    text, finished = await worker.sh(
        "echo more >> file; cat file; echo $RUN", fork="f1", merge_on_success=True, session_label="R07"
    )
    assert text == "seeded\nmore\nR07\n"
    assert finished.HasField("cpu_seconds") or finished.seconds < 0.2
    assert (await worker.sh("cat file"))[0] == "seeded\nmore\n"
    # A command that fails has still done what it did before.
    text, finished = await worker.sh("echo half > half; exit 3", fork="f2", merge_on_success=True)
    assert (text, finished.observation.tool_error) == ("[exit code 3]\n", True)
    assert finished.status == common_pb2.CALL_STATUS_OK
    assert (await worker.sh("cat half"))[0] == "half\n"


async def test_parallel_real_writes_all_arrive(worker: Worker) -> None:
    await asyncio.gather(*(worker.sh(f"echo {n} > n{n}", fork=f"p{n}", merge_on_success=True) for n in range(6)))
    assert (await worker.sh("cat n?"))[0] == "0\n1\n2\n3\n4\n5\n"


async def test_a_speculation_is_merged_dropped_or_refused(worker: Worker) -> None:
    ahead = {"priority": sandbox_pb2.PRIORITY_SPECULATIVE}
    await worker.sh("echo ahead > ahead", fork="g1", **ahead)
    assert "No such file" in (await worker.sh("cat ahead"))[0]
    with rpc_errors():
        merged = await worker.stub.MergeFork(
            sandbox_pb2.MergeForkRequest(session="s1", fork="g1"), timeout=5.0, metadata=worker.metadata
        )
        again = await worker.stub.MergeFork(
            sandbox_pb2.MergeForkRequest(session="s1", fork="g1"), timeout=5.0, metadata=worker.metadata
        )
    assert merged.workspace_version == again.workspace_version == 1
    assert (await worker.sh("cat ahead"))[0] == "ahead\n"
    await worker.sh("echo 2 > ahead", fork="g2", **ahead)
    await worker.sh("echo 3 > ahead", fork="g3", merge_on_success=True)
    with pytest.raises(Aborted) as refused, rpc_errors():
        await worker.stub.MergeFork(
            sandbox_pb2.MergeForkRequest(session="s1", fork="g2"), timeout=5.0, metadata=worker.metadata
        )
    assert refused.value.reason is ErrorReason.MERGE_CONFLICT
    for _ in range(2):
        await worker.stub.DropFork(
            sandbox_pb2.DropForkRequest(session="s1", fork="g2"), timeout=5.0, metadata=worker.metadata
        )
    with pytest.raises(NotFound), rpc_errors():
        await worker.stub.MergeFork(
            sandbox_pb2.MergeForkRequest(session="s1", fork="g2"), timeout=5.0, metadata=worker.metadata
        )
    assert (await worker.sh("cat ahead"))[0] == "3\n"


async def test_speculation_without_a_slot_is_refused_at_once_and_preempted_by_real_work(worker: Worker) -> None:
    ahead = worker.request(
        "sh", arguments={"script": "sleep 30"}, fork="h", priority=sandbox_pb2.PRIORITY_SPECULATIVE
    )  # fmt: skip
    running_ahead = asyncio.ensure_future(worker.execute(ahead))
    await asyncio.sleep(0.3)
    with pytest.raises(ResourceExhausted) as refused:
        await worker.sh("true", fork="h2", priority=sandbox_pb2.PRIORITY_SPECULATIVE)
    assert refused.value.reason is ErrorReason.NO_FREE_SLOT
    results = await asyncio.gather(*(worker.sh("sleep 0.3; echo real") for _ in range(3)))
    assert [text for text, _ in results] == ["real\n"] * 3
    assert max(finished.queued_seconds for _, finished in results) < 0.1
    _, preempted, _ = await running_ahead
    assert (preempted.status, preempted.preempted) == (common_pb2.CALL_STATUS_CANCELLED, True)
    with pytest.raises(NotFound), rpc_errors():
        await worker.stub.MergeFork(
            sandbox_pb2.MergeForkRequest(session="s1", fork="h"), timeout=5.0, metadata=worker.metadata
        )


async def test_promotion_over_the_wire(worker: Worker) -> None:
    ahead = worker.request(
        "sh",
        arguments={"script": "sleep 1; echo joined"},
        priority=sandbox_pb2.PRIORITY_SPECULATIVE,
        timeout_seconds=0.6,
    )
    joined = asyncio.ensure_future(worker.execute(ahead))
    await asyncio.sleep(0.3)
    with rpc_errors():
        promoted = await worker.stub.Promote(
            sandbox_pb2.PromoteRequest(execution=ahead.execution, timeout_seconds=20.0),
            timeout=5.0,
            metadata=worker.metadata,
        )
    assert promoted.running_seconds > 0.1
    content, finished, _ = await joined
    assert (content, finished.promoted) == (b"joined\n", True)
    with pytest.raises(NotFound), rpc_errors():
        await worker.stub.Promote(
            sandbox_pb2.PromoteRequest(execution=ahead.execution, timeout_seconds=20.0),
            timeout=5.0,
            metadata=worker.metadata,
        )


async def test_limits_have_their_reasons_and_leave_nothing_behind(worker: Worker) -> None:
    _, finished = await worker.sh("echo x > left; sleep 30", fork="k", merge_on_success=True, timeout_seconds=0.5)
    assert (finished.status, finished.failure.reason) == (common_pb2.CALL_STATUS_TIMEOUT, "TOOL_TIMEOUT")
    _, finished = await worker.sh("head -c 400000000 /dev/zero > big", fork="k2", merge_on_success=True)
    assert (finished.status, finished.failure.reason) == (common_pb2.CALL_STATUS_REJECTED, "LIMIT_DISK")
    assert "changes to the workspace were dropped" in finished.failure.message
    _, finished = await worker.sh("yes")
    assert (finished.failure.reason, finished.not_started) == ("LIMIT_OUTPUT", False)
    assert "dropped" not in finished.failure.message
    assert (await worker.sh("ls"))[0] == "file\n"


async def test_a_caller_who_hangs_up_ends_the_command(worker: Worker) -> None:
    call = worker.stub.Execute(
        worker.request("sh", arguments={"script": "sleep 879"}), timeout=60.0, metadata=worker.metadata
    )
    first = await call.read()
    assert isinstance(first, sandbox_pb2.ExecuteResponse) and first.HasField("started")
    while not _alive("879"):  # noqa: ASYNC110  (another process has no event of ours)
        await asyncio.sleep(0.01)
    call.cancel()
    async with asyncio.timeout(5):
        while _alive("879"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_command_that_was_stopped_has_really_ended(worker: Worker) -> None:
    request = worker.request("sh", arguments={"script": "sleep 878 & sleep 878"}, fork="k", merge_on_success=True)
    running = asyncio.ensure_future(worker.execute(request))
    async with asyncio.timeout(20):
        while not _alive("878"):  # noqa: ASYNC110  (another process has no event of ours)
            await asyncio.sleep(0.01)
        stop = sandbox_pb2.StopExecutionRequest(execution=request.execution)
        await worker.stub.StopExecution(stop, timeout=10.0, metadata=worker.metadata)
        assert not _alive("878")
        _, finished, _ = await running
    assert (finished.status, finished.not_started) == (common_pb2.CALL_STATUS_CANCELLED, False)
    assert not finished.may_continue, "its changes stay in a fork that was dropped"
    with pytest.raises(NotFound), rpc_errors():
        await worker.stub.StopExecution(stop, timeout=5.0, metadata=worker.metadata)
    assert (await worker.sh("ls"))[0] == "file\n"


async def test_a_function_that_was_stopped_may_go_on_and_says_so(worker: Worker) -> None:
    request = worker.request("pause", arguments={})
    running = asyncio.ensure_future(worker.execute(request))
    await asyncio.to_thread(_PAUSED.acquire)
    stop = sandbox_pb2.StopExecutionRequest(execution=request.execution)
    await worker.stub.StopExecution(stop, timeout=10.0, metadata=worker.metadata)
    _, finished, _ = await running
    _GO_ON.release()
    assert (finished.status, finished.may_continue) == (common_pb2.CALL_STATUS_CANCELLED, True)


async def test_wrong_requests_are_refused_before_anything_runs(worker: Worker) -> None:
    for request, error, reason in (
        (worker.request("absent"), NotFound, ErrorReason.TOOL_NOT_FOUND),
        (worker.request("sh"), InvalidArgument, ErrorReason.ARGUMENTS_REFUSED),
        (worker.request("add", timeout_seconds=-1.0), InvalidArgument, ErrorReason.ARGUMENT_INVALID),
        (worker.request("add", merge_on_success=True), InvalidArgument, ErrorReason.ARGUMENT_INVALID),
    ):
        with pytest.raises(error) as refused:
            await worker.execute(request)
        assert refused.value.reason is reason
    other = worker.request("add", arguments={"a": 1, "b": 2})
    other.action.tool_version = "sha256:other"
    _, finished, _ = await worker.execute(other)
    assert (finished.status, finished.not_started) == (common_pb2.CALL_STATUS_UNAVAILABLE, True)


async def test_only_services_may_call(tmp_path: Path, bus: MemoryBus) -> None:
    tokens = tmp_path / "tokens.json"
    user = "u" * 40
    tokens.write_text(
        json.dumps({"tokens": [{"sha256": token_digest(user), "tenant": "acme", "principal": "ann", "scope": "all"}]})
    )
    async with running(tmp_path, bus, token=user, token_file=tokens) as outsider:
        with pytest.raises(PermissionDenied):
            await outsider.execute(outsider.request("add"))


async def test_tenants_with_the_same_session_do_not_meet(worker: Worker) -> None:
    other = Worker(worker.stub, "globex")
    await worker.sh("echo mine > mine", fork="f", merge_on_success=True)
    assert (await other.sh("ls"))[0] == "file\n"
    await worker.sh("echo ahead > ahead", fork="g", priority=sandbox_pb2.PRIORITY_SPECULATIVE)
    with pytest.raises(NotFound), rpc_errors():
        await other.stub.MergeFork(
            sandbox_pb2.MergeForkRequest(session="s1", fork="g"), timeout=5.0, metadata=other.metadata
        )
    await other.stub.DropFork(sandbox_pb2.DropForkRequest(session="s1", fork="g"), timeout=5.0, metadata=other.metadata)
    running = worker.request("sh", arguments={"script": "sleep 1"}, priority=sandbox_pb2.PRIORITY_SPECULATIVE)
    call = asyncio.ensure_future(worker.execute(running))
    await asyncio.sleep(0.3)
    with pytest.raises(NotFound), rpc_errors():
        await other.stub.Promote(
            sandbox_pb2.PromoteRequest(execution=running.execution, timeout_seconds=20.0),
            timeout=5.0, metadata=other.metadata,
        )  # fmt: skip
    await other.stub.CloseSession(sandbox_pb2.CloseSessionRequest(session="s1"), timeout=5.0, metadata=other.metadata)
    assert (await call)[1].status == common_pb2.CALL_STATUS_OK
    with rpc_errors():
        await worker.stub.MergeFork(
            sandbox_pb2.MergeForkRequest(session="s1", fork="g"), timeout=5.0, metadata=worker.metadata
        )
    assert (await worker.sh("cat mine ahead"))[0] == "mine\nahead\n"


async def test_a_request_for_another_tenant_than_the_caller_is_refused(worker: Worker) -> None:
    request = worker.request("sh", arguments={"script": "true"})
    request.caller.tenant = "globex"
    with pytest.raises(PermissionDenied):
        await worker.execute(request)


async def test_load_reports_tell_where_there_is_room(tmp_path: Path, bus: MemoryBus) -> None:
    reports: list[sandbox_pb2.LoadReport] = []
    changed = asyncio.Event()

    async def hear(message: Message) -> None:
        reports.append(sandbox_pb2.LoadReport.FromString(message.data))
        changed.set()

    await bus.subscribe(subjects.loads(), hear, pending_messages=100)
    async with (
        running(tmp_path, bus, authoritative_slots=3, speculative_slots=2, report_seconds=0.1) as worker,
        asyncio.timeout(10),
    ):
        call = asyncio.ensure_future(worker.sh("sleep 0.5"))
        while not any(report.authoritative_free == 4 for report in reports):
            changed.clear()
            await changed.wait()
        await call
        while (reports[-1].authoritative_free, reports[-1].speculative_free) != (5, 2):
            changed.clear()
            await changed.wait()
    assert all(report.worker == "w1" and report.address for report in reports)


async def test_closing_a_session_ends_its_work_and_forgets_its_files(worker: Worker) -> None:
    await worker.sh("echo x > mine", fork="c", merge_on_success=True)
    slow = asyncio.ensure_future(worker.sh("sleep 30"))
    await asyncio.sleep(0.2)
    await worker.stub.CloseSession(
        sandbox_pb2.CloseSessionRequest(session="s1"), timeout=10.0, metadata=worker.metadata
    )
    assert (await slow)[1].status == common_pb2.CALL_STATUS_CANCELLED
    assert (await worker.sh("ls"))[0] == "file\n"


async def test_what_is_active_is_told(worker: Worker) -> None:
    told = await worker.stub.Describe(sandbox_pb2.DescribeRequest(), timeout=5.0)
    assert told.isolation in ("gvisor", "bubblewrap", "process")
    assert told.workspace_fork in ("overlay", "reflink", "copy")
    assert (told.authoritative_slots, told.speculative_slots) == (2, 1)
    assert next(level for level in told.levels if level.name == told.isolation).available


async def test_a_changed_policy_file_is_taken_over(worker: Worker, tmp_path: Path, bus: MemoryBus) -> None:
    changed = asyncio.Event()

    async def hear(message: Message) -> None:
        if sandbox_pb2.LoadReport.FromString(message.data).tools_generation > 1:
            changed.set()

    await bus.subscribe(subjects.loads(), hear, pending_messages=100)
    policy = tmp_path / "policy.yaml"
    policy.write_text("servers: [{name: bench, tools: [{name: other, python: {entry_point: 'tests:x'}}]}]\n")
    async with asyncio.timeout(10):
        await changed.wait()
    tools = await worker.stub.ListTools(sandbox_pb2.ListToolsRequest(), timeout=5.0)
    assert [one.name for one in tools.tools] == ["other"]


def _alive(argument: str) -> bool:
    return bool(alive(f"sleep\x00{argument}"))
