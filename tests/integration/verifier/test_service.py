"""The verifier as a process, with a real broker and a worker behind real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc.aio
import pytest
import pytest_asyncio

from forerun.runtime import subjects
from forerun.runtime.auth import Authenticator
from forerun.runtime.broker import Broker, new_passwords
from forerun.runtime.bus import Message
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason, from_rpc_error
from forerun.runtime.ids import SystemIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.topology import AUDITS, ensure
from forerun.runtime.tracing import Tracing
from forerun.v1 import (
    common_pb2,
    event_pb2,
    ledger_pb2,
    policy_pb2,
    sandbox_pb2,
    sandbox_pb2_grpc,
    verification_pb2,
    verification_pb2_grpc,
)
from tests.integration.snapshots.processes import INTERNAL_TOKEN, Service, as_service, as_user
from tests.unit.verifier.worker import DIGEST, Worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTRACT = policy_pb2.EffectContract(
    tool="read",
    effect=policy_pb2.EFFECT_READ,
    speculate=True,
    reads=[policy_pb2.Resource(template="things", scope=policy_pb2.RESOURCE_SCOPE_SESSION)],
)


@dataclass
class Platform:
    """A broker, a worker and a verifier."""

    bus: NatsBus
    worker: Worker
    verifier: Service
    stub: verification_pb2_grpc.VerificationServiceStub
    lines: asyncio.Queue[ledger_pb2.LedgerLine]
    dead: asyncio.Queue[Message]

    async def hit(self, session: str) -> verification_pb2.AuditRequest:
        """The request to audit a hit of a session that read once."""
        call = event_pb2.AskedCall(index=0, action=common_pb2.Action(tool="read", arguments=b"{}"))
        asked = event_pb2.SessionEvent(at_seconds=1.0, calls_asked=event_pb2.CallsAsked(turn=1, calls=[call]))
        await self.bus.append(subjects.event(0, "t", "a", session), asked.SerializeToString(), timeout_seconds=5.0)
        return verification_pb2.AuditRequest(
            line=ledger_pb2.LedgerLine(
                id=session, at_seconds=2.0, tenant="t", principal="p", agent="a", session=session, tool="read",
                digest=DIGEST, call=common_pb2.CallKey(session=session, turn=1, index=0),
            ),
            action=common_pb2.Action(tool="read", tool_version="v1", arguments=b"{}"),
            contract=CONTRACT,
            contracts=[CONTRACT],
        )  # fmt: skip

    async def publish(self, data: bytes) -> None:
        await self.bus.append(subjects.audit("t"), data, timeout_seconds=5.0)

    async def outcome(self, request: verification_pb2.AuditRequest) -> ledger_pb2.LedgerLine:
        await self.publish(request.SerializeToString())
        async with asyncio.timeout(30):
            return await self.lines.get()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    tmp_path = tmp_path_factory.mktemp("verifier")
    clock = SystemClock()
    ids = SystemIds(clock)
    passwords = new_passwords(ids)
    broker = Broker(tmp_path / "broker", passwords)
    url = await broker.start()
    password_file = tmp_path / "password"
    password_file.write_text(passwords["verifier"])
    options = NatsOptions(servers=(url,), user="admin", password=passwords["admin"])
    bus = await NatsBus.connect(options, clock=clock, ids=ids)
    await ensure(bus)
    inbound = Inbound(
        authenticator=Authenticator(clock, internal_token=INTERNAL_TOKEN),
        metrics=Metrics("sandbox"),
        tracing=Tracing("sandbox"),
    )
    network = GrpcNetwork(inbound)
    worker = Worker()  # type: ignore[abstract]  # the verifier calls Execute only
    register: Callable[[object], None] = lambda server: sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(  # noqa: E731
        worker,
        server,  # type: ignore[arg-type]
    )
    handle = await network.serve("sandbox", "127.0.0.1:0", [register], services=[])
    verifier = Service(
        "verifier",
        {"nats_url": url, "nats_password_file": str(password_file), "settle_seconds": "0.1", "shutdown_seconds": "3"},
        tmp_path,
    )
    await verifier.start()
    lines: asyncio.Queue[ledger_pb2.LedgerLine] = asyncio.Queue()
    dead: asyncio.Queue[Message] = asyncio.Queue()

    async def line(message: Message) -> None:
        lines.put_nowait(ledger_pb2.LedgerLine.FromString(message.data))

    async def letter(message: Message) -> None:
        dead.put_nowait(message)

    await bus.subscribe(f"{subjects.PREFIX}.ledger.{subjects.token('t')}.>", line, pending_messages=100)
    await bus.subscribe(subjects.dead_letter(AUDITS, "verifier"), letter, pending_messages=100)

    async def report() -> None:
        load = sandbox_pb2.LoadReport(worker="w", address=handle.address, speculative_free=1)
        while True:
            await bus.notify(subjects.load("w"), load.SerializeToString())
            await asyncio.sleep(0.2)

    reporting = asyncio.create_task(report())
    async with grpc.aio.insecure_channel(verifier.address) as channel:
        stub = verification_pb2_grpc.VerificationServiceStub(channel)
        yield Platform(bus, worker, verifier, stub, lines, dead)
    reporting.cancel()
    await verifier.kill()
    await handle.stop(0.0)
    await network.close()
    await bus.close(5.0)
    await broker.stop()


async def status_of(call: Awaitable[object]) -> tuple[grpc.StatusCode, ErrorReason]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), from_rpc_error(raised.value).reason


async def test_audits_from_the_stream_and_by_call(platform: Platform) -> None:
    assert (await platform.outcome(await platform.hit("one"))).audit_result == "same"
    assert platform.worker.callers == [("t", "p", "")]

    platform.worker.digest = "sha256:" + "22" * 32
    different = await platform.outcome(await platform.hit("two"))
    assert (different.audit_result, different.digest) == ("different", platform.worker.digest)

    request = await platform.hit("three")
    response = await platform.stub.Audit(request, timeout=20, metadata=as_service("t"))
    assert (response.result, response.digest) == (verification_pb2.AUDIT_RESULT_DIFFERENT, platform.worker.digest)
    assert (await platform.lines.get()).id == "audit-three"

    await platform.publish(b"\xff\xff")
    async with asyncio.timeout(20):
        letter = await platform.dead.get()
    assert b"\xff\xff" not in letter.data

    asked = event_pb2.CallsAsked(turn=2, calls=[event_pb2.AskedCall(action=common_pb2.Action(tool="write"))])
    event = event_pb2.SessionEvent(at_seconds=3.0, calls_asked=asked)
    request = await platform.hit("four")
    await platform.bus.append(subjects.event(0, "t", "a", "four"), event.SerializeToString(), timeout_seconds=5.0)
    assert (await platform.outcome(request)).audit_result == "inconclusive"

    request.contract.effect = policy_pb2.EFFECT_WRITE
    refused = await status_of(platform.stub.Audit(request, timeout=20, metadata=as_service("t")))
    assert refused == (grpc.StatusCode.FAILED_PRECONDITION, ErrorReason.POLICY_DENIED)
    assert any("an audit found another result" in entry for entry in platform.verifier.log)


async def test_certification_over_the_wire(platform: Platform) -> None:
    request = verification_pb2.CertifyRequest(
        speculation="s",
        action=common_pb2.Action(tool="read", tool_version="v1"),
        contract=CONTRACT,
        current_tool_version="v1",
        status=common_pb2.CALL_STATUS_OK,
        observation=common_pb2.Observation(digest=DIGEST),
        recorded=common_pb2.Generations(marks={"self:things": 1}),
        current=common_pb2.Generations(marks={"self:things": 1}),
    )
    assert (await platform.stub.Certify(request, timeout=5, metadata=as_service("t"))).certified
    request.current.marks["self:things"] = 2
    refusal = await platform.stub.Certify(request, timeout=5, metadata=as_service("t"))
    assert (refusal.certified, refusal.reason, refusal.detail) == (False, "STALE", "self:things")
    request.ClearField("contract")
    incomplete = await status_of(platform.stub.Certify(request, timeout=5, metadata=as_service("t")))
    assert incomplete == (grpc.StatusCode.INVALID_ARGUMENT, ErrorReason.ARGUMENT_INVALID)
    stranger = await status_of(platform.stub.Certify(request, timeout=5, metadata=as_user("acme")))
    assert stranger == (grpc.StatusCode.PERMISSION_DENIED, ErrorReason.CALLER_NOT_ALLOWED)


async def test_an_audit_that_a_stop_interrupts_is_done_by_the_next_verifier(platform: Platform) -> None:
    started, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        started.set()
        await never.wait()

    platform.worker.digest, platform.worker.during = DIGEST, hang
    request = await platform.hit("interrupted")
    await platform.publish(request.SerializeToString())
    async with asyncio.timeout(20):
        await started.wait()
    before = len(platform.worker.requests)
    stopping = asyncio.create_task(platform.verifier.stop())
    platform.worker.during = None
    assert await stopping == 0
    await platform.verifier.start()
    async with asyncio.timeout(30):
        line = await platform.lines.get()
    assert (line.id, line.audit_result) == ("audit-interrupted", "same")
    assert len(platform.worker.requests) == before + 1
