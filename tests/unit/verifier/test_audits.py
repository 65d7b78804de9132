"""Audits through the production wiring, in memory and under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forerun.core.freshness import bumps
from forerun.runtime import subjects
from forerun.runtime.auth import Authenticator, CallToken
from forerun.runtime.bus import Message
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.topology import AUDITS, GENERATIONS
from forerun.runtime.tracing import Tracing
from forerun.runtime.virtual import run_virtual
from forerun.v1 import (
    common_pb2,
    event_pb2,
    ledger_pb2,
    policy_pb2,
    sandbox_pb2,
    sandbox_pb2_grpc,
    verification_pb2,
)
from forerun.verifier.app import build
from forerun.verifier.settings import VerifierSettings
from tests.unit.verifier.worker import DIGEST, Worker

TOKEN = "internal-token-of-this-test-0123456789"
OTHER = "sha256:" + "22" * 32


@dataclass
class Stage:
    """A verifier, one worker, and a bus."""

    clock: LoopClock
    bus: MemoryBus
    worker: Worker
    metrics: Callable[[str], float]
    events: int = 0
    written: asyncio.Queue[ledger_pb2.LedgerLine] = field(default_factory=asyncio.Queue)
    dead: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)

    async def listen(self) -> None:
        async def line(message: Message) -> None:
            self.written.put_nowait(ledger_pb2.LedgerLine.FromString(message.data))

        async def letter(message: Message) -> None:
            self.dead.put_nowait(message)

        await self.bus.subscribe(subjects.ledger("t", "s"), line, pending_messages=10)
        await self.bus.subscribe(subjects.dead_letter(AUDITS, "verifier"), letter, pending_messages=10)

    async def journal(self, **event: Any) -> None:
        self.events += 1
        message = event_pb2.SessionEvent(session="s", number=self.events, at_seconds=self.clock.now(), **event)
        await self.bus.append(subjects.event(3, "t", "a", "s"), message.SerializeToString(), timeout_seconds=1.0)

    async def asked(self, turn: int, tool: str) -> None:
        call = event_pb2.AskedCall(index=0, action=common_pb2.Action(tool=tool, arguments=b"{}"))
        await self.journal(calls_asked=event_pb2.CallsAsked(turn=turn, calls=[call]))

    async def hit(self, **changes: Any) -> verification_pb2.AuditRequest:
        """A session with one call that was answered by a hit, and the request to audit it."""
        await self.journal(opened=event_pb2.SessionOpened())
        await self.asked(1, "read")
        line = ledger_pb2.LedgerLine(
            id="line-1", at_seconds=self.clock.now(), tenant="t", principal="p", agent="a", session="s", tool="read",
            digest=DIGEST, call=common_pb2.CallKey(session="s", turn=1, index=0), speculation="spec-1",
        )  # fmt: skip
        await asyncio.sleep(0.1)
        contract = policy_pb2.EffectContract(
            tool="read", effect=policy_pb2.EFFECT_READ, cost_money=0.5, output_cap_bytes=99, timeout_seconds=7,
            reads=[policy_pb2.Resource(template="things", scope=policy_pb2.RESOURCE_SCOPE_SESSION)],
        )  # fmt: skip
        request = verification_pb2.AuditRequest(
            line=line, action=common_pb2.Action(tool="read", tool_version="v1", arguments=b'{"a": 1}'),
            contract=contract, contracts=[contract], credential_scope="scope", session_label="label", partition=3,
        )  # fmt: skip
        request.MergeFrom(verification_pb2.AuditRequest(**changes))
        return request

    async def publish(self, request: verification_pb2.AuditRequest, *, tenant: str = "t") -> None:
        await self.bus.append(subjects.audit(tenant), request.SerializeToString(), timeout_seconds=1.0)

    async def lines(self) -> list[ledger_pb2.LedgerLine]:
        messages = await self.bus.read(subjects.ledger("t", "s"), limit=100)
        return [ledger_pb2.LedgerLine.FromString(message.data) for message in messages]

    async def outcome(self, request: verification_pb2.AuditRequest) -> ledger_pb2.LedgerLine:
        await self.publish(request)
        async with asyncio.timeout(600):
            return await self.written.get()


@asynccontextmanager
async def stage(folder: Path, clock: LoopClock, ids: SeededIds, *, report: bool = True) -> AsyncIterator[Stage]:
    token_file = folder / "internal"
    token_file.write_text(TOKEN)
    fabric, broker, metrics = MemoryFabric(), MemoryBroker(clock), Metrics(None)
    bus = MemoryBus(broker, "test")
    inbound = Inbound(
        authenticator=Authenticator(clock, internal_token=TOKEN), metrics=metrics, tracing=Tracing("sandbox")
    )
    sandbox = MemoryNetwork(fabric, inbound, source="sandbox", token=CallToken(TOKEN))
    worker = Worker()  # type: ignore[abstract]  # the verifier calls Execute only
    handle = await sandbox.serve(
        "sandbox",
        "worker:1",
        [lambda server: sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(worker, server)],
        services=[],
    )
    app = build(
        VerifierSettings(internal_token_file=token_file, listen_address="verifier:1"),
        clock=clock,
        ids=ids,
        bus=MemoryBus(broker, "verifier"),
        network=lambda inbound, token, options: MemoryNetwork(
            fabric, inbound, source="verifier", token=token, options=options
        ),
    )
    await app.start()

    async def reports() -> None:
        while report:
            load = sandbox_pb2.LoadReport(worker="w", address="worker:1", speculative_free=1)
            await bus.notify(subjects.load("w"), load.SerializeToString())
            await asyncio.sleep(1.0)

    reporting = asyncio.create_task(reports())
    set_up = Stage(
        clock,
        bus,
        worker,
        lambda result: app.metrics.registry.get_sample_value("forerun_audits_total", {"result": result}) or 0.0,
    )
    await set_up.listen()
    try:
        yield set_up
    finally:
        reporting.cancel()
        await app.stop(5.0)
        await handle.stop(1.0)


def on_stage(folder: Path, scene: Callable[[Stage], Awaitable[None]], *, report: bool = True) -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        async with stage(folder, clock, ids, report=report) as set_up:
            await scene(set_up)

    run_virtual(main)


def test_the_same_result_again(tmp_path: Path) -> None:
    async def scene(on: Stage) -> None:
        line = await on.outcome(await on.hit())
        assert (line.audit_result, line.kind, line.digest) == ("same", ledger_pb2.LEDGER_KIND_AUDIT, DIGEST)
        assert (line.id, line.speculation, line.tool) == ("audit-line-1", "spec-1", "read")
        assert (line.seconds, line.cost_money) == (0.25, 0.5)
        assert on.metrics("equal") == 1.0
        (request,) = on.worker.requests
        assert request.priority == sandbox_pb2.PRIORITY_AUDIT
        assert (request.session, request.session_label, request.fork) == ("s", "label", "")
        assert (request.action.arguments, request.output_cap_bytes, request.timeout_seconds) == (b'{"a": 1}', 99, 7.0)
        assert on.worker.callers == [("t", "p", "scope")]

    on_stage(tmp_path, scene)


def test_another_result_and_nothing_written_is_a_divergence(tmp_path: Path) -> None:
    async def scene(on: Stage) -> None:
        on.worker.digest = OTHER
        line = await on.outcome(await on.hit())
        assert (line.audit_result, line.digest, line.reason) == ("different", OTHER, "")
        assert on.metrics("diverged") == 1.0

    on_stage(tmp_path, scene)


def test_a_write_before_the_audit_makes_it_pointless_to_execute(tmp_path: Path) -> None:
    async def scene(on: Stage) -> None:
        request = await on.hit()
        await on.asked(2, "write")
        line = await on.outcome(request)
        assert (line.audit_result, line.cost_money) == ("inconclusive", 0.0)
        assert on.worker.requests == []
        assert on.metrics("skipped") == 1.0

    on_stage(tmp_path, scene)


def test_a_write_that_reaches_the_journal_after_the_execution_is_still_seen(tmp_path: Path) -> None:
    async def scene(on: Stage) -> None:
        on.worker.digest = OTHER
        late: list[asyncio.Task[None]] = []

        async def write() -> None:
            await asyncio.sleep(0.5)
            await on.asked(2, "write")

        async def begin() -> None:
            late.append(asyncio.create_task(write()))

        on.worker.during = begin
        line = await on.outcome(await on.hit())
        assert line.audit_result == "inconclusive"
        await asyncio.gather(*late)

    on_stage(tmp_path, scene)


def test_a_shared_resource_that_was_written(tmp_path: Path) -> None:
    async def scene(on: Stage) -> None:
        store = on.bus.kv(GENERATIONS)
        marks = {f"shared/{mark}": await store.put(f"t/{mark}", b"") for mark in bumps(["things"])}
        line = ledger_pb2.LedgerLine(generations=common_pb2.Generations(marks=marks))
        first = await on.hit(line=line)
        assert (await on.outcome(first)).audit_result == "same"
        await store.put("t/self:things", b"")
        second = await on.hit(line=line)
        second.line.id = "line-2"
        await on.publish(second)
        assert (await on.written.get()).audit_result == "inconclusive"

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("what", ["version", "status", "stale"])
def test_what_proves_nothing_is_inconclusive(tmp_path: Path, what: str) -> None:
    async def scene(on: Stage) -> None:
        on.worker.digest = OTHER
        request = await on.hit()
        if what == "version":
            on.worker.version = "v2"
        elif what == "status":
            on.worker.status = common_pb2.CALL_STATUS_TIMEOUT
        else:
            request.contract.open_world = True
        line = await on.outcome(request)
        assert line.audit_result == "inconclusive"
        assert line.reason
        assert on.metrics("failed") == 1.0

    on_stage(tmp_path, scene)


def test_a_full_worker_and_a_preemption_are_tried_again(tmp_path: Path) -> None:
    async def scene(on: Stage) -> None:
        on.worker.busy_times, on.worker.preempted_times = 2, 1
        line = await on.outcome(await on.hit())
        assert line.audit_result == "same"
        assert len(on.worker.requests) == 2

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(("named", "result"), [("", "inconclusive"), ("w", "same")])
def test_a_workspace_is_never_looked_for_on_another_worker(tmp_path: Path, named: str, result: str) -> None:
    async def scene(on: Stage) -> None:
        load = sandbox_pb2.LoadReport(worker="another", address="another:1", speculative_free=9)
        await on.bus.notify(subjects.load("another"), load.SerializeToString())
        line = await on.outcome(await on.hit(workspace="s", worker=named))
        assert line.audit_result == result
        assert len(on.worker.requests) == (1 if named else 0)

    on_stage(tmp_path, scene)


def test_without_any_worker_it_ends_inconclusive(tmp_path: Path) -> None:
    async def scene(on: Stage) -> None:
        line = await on.outcome(await on.hit())
        assert line.audit_result == "inconclusive"
        assert on.worker.requests == []

    on_stage(tmp_path, scene, report=False)


def test_an_audit_that_is_delivered_again_after_its_line_was_written_is_not_repeated(tmp_path: Path) -> None:
    async def scene(on: Stage) -> None:
        request = await on.hit()
        written = ledger_pb2.LedgerLine(id="audit-line-1", audit_result="same")
        on.worker.busy_times = 1

        async def after_the_first_attempt() -> None:
            await on.worker.refused.wait()
            await on.bus.append(subjects.ledger("t", "s"), written.SerializeToString(), timeout_seconds=1.0)

        watching = asyncio.create_task(after_the_first_attempt())
        line = await on.outcome(request)
        await watching
        await asyncio.sleep(100.0)
        assert line == written
        assert await on.lines() == [written]
        assert on.worker.requests == []

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("what", ["garbage", "tenant", "write", "incomplete"])
def test_what_nobody_can_audit_goes_to_the_dead_letters(tmp_path: Path, what: str) -> None:
    async def scene(on: Stage) -> None:
        request = await on.hit()
        if what == "garbage":
            await on.bus.append(subjects.audit("t"), b"\xff\xff\xff", timeout_seconds=1.0)
        elif what == "tenant":
            await on.publish(request, tenant="another")
        else:
            if what == "write":
                request.contract.effect = policy_pb2.EFFECT_WRITE
            else:
                request.line.digest = ""
            await on.publish(request)
        async with asyncio.timeout(60):
            await on.dead.get()
        assert await on.lines() == []
        assert on.worker.requests == []

    on_stage(tmp_path, scene)
