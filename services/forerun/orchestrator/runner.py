"""Runs one session's machine: performs its effects and feeds back what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Final

from forerun.core import limits
from forerun.core.outcomes import CallStatus
from forerun.core.session import (
    Answer,
    Append,
    BumpShared,
    CancelExecution,
    Certify,
    DropFork,
    Effect,
    Execute,
    ExecutionResult,
    Failure,
    MergeFork,
    PreparedCall,
    Promote,
    ReadShared,
    Record,
    SessionMachine,
)
from forerun.orchestrator.certifier import Certifier
from forerun.orchestrator.client_tools import ClientTools
from forerun.orchestrator.journal import Journal
from forerun.orchestrator.ledger import Outbox
from forerun.orchestrator.observer import Observer
from forerun.orchestrator.preparation import Preparation, Tool
from forerun.orchestrator.records import EventContext, call_result, ledger_line, totals_message
from forerun.orchestrator.shared import SharedGenerations
from forerun.orchestrator.workers import Workers
from forerun.runtime import subjects
from forerun.runtime.auth import Caller
from forerun.runtime.errors import ForerunError
from forerun.runtime.policy import Policy, contract_message
from forerun.runtime.tasks import TaskScope
from forerun.v1 import common_pb2, session_pb2, verification_pb2

_LOG: Final = logging.getLogger(__name__)
_BUMP_SECONDS: Final = 4.0
_RETRY_SECONDS: Final = 0.2
_CLOSE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What all sessions of a replica share.

    Attributes:
        workers: Runs tools.
        certifier: The verifier.
        shared: Generations of shared resources.
        outbox: Ledger lines and audits.
        tasks: Owns background work.
        observer: Metrics, totals and traces.
        partitions: Predictor partitions.
        monotonic: The time for decisions.
    """

    workers: Workers
    certifier: Certifier
    shared: SharedGenerations
    outbox: Outbox
    tasks: TaskScope
    observer: Observer
    partitions: int
    monotonic: Callable[[], float]


@dataclass(slots=True, kw_only=True)
class Session:
    """One open session of this replica.

    Attributes:
        caller: Whose it is.
        context: What its records say.
        machine: Its decisions.
        policy: The policy in force.
        tools: The tools that it can call, by name.
        declared: The tools that it declared; empty: all.
        wanted: The mode that the client asked for, or 0.
        label: Its logical name.
        held_out: The hold-out took it.
    """

    caller: Caller
    context: EventContext
    machine: SessionMachine
    policy: Policy
    tools: Mapping[str, Tool]
    declared: tuple[str, ...]
    wanted: int
    label: str
    held_out: bool
    preparation: Preparation = field(init=False)

    def __post_init__(self) -> None:
        """Derives the preparation from the caller."""
        self.preparation = Preparation(
            tenant=self.caller.tenant,
            principal=self.caller.principal,
            credential_scope=self.caller.credential_scope,
            session=self.context.session,
        )

    def prepare(self, tool: str, arguments: bytes) -> PreparedCall | Failure:
        """A prepared call, or why it is refused."""
        return self.preparation.prepare(self.tool(tool), tool, arguments, self.policy)

    def tool(self, name: str) -> Tool | None:
        """A tool that this session may call."""
        if self.declared and name not in self.declared:
            return None
        return self.tools.get(name)


class Runner:
    """Performs effects of one session.

    Args:
        session: The session.
        ports: What sessions share.
        journal: The session's journal.
        ended: Called once when the session is closed or lost.
    """

    def __init__(self, session: Session, ports: Ports, journal: Journal, ended: Callable[[Runner], None]) -> None:
        self.session = session
        self.journal = journal
        self.client_tools = ClientTools(self._send)
        self._ports = ports
        self.step = ports.observer.step(session.context.session, session.context.agent)
        self._ended = ended
        self._executions: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._out: asyncio.Queue[session_pb2.ConnectResponse | None] | None = None
        self._waiters: dict[tuple[int, int], list[asyncio.Future[session_pb2.CallResult]]] = {}
        self.used_at = asyncio.get_running_loop().time()
        self.closed = False
        self.leaving = False
        self.streamed = False
        self.quiet = asyncio.Event()
        self.quiet.set()

    # ------------------------------------------------------------ the client's side

    def attach(self) -> asyncio.Queue[session_pb2.ConnectResponse | None]:
        """Answers go to this queue from now on; an older one ends. None in it ends the stream."""
        self.detach(self._out)
        # Bounded by what a client may have open: calls of a message, and chunks that the journal holds anyway.
        self._out = asyncio.Queue()
        self.streamed = True
        self._touch()
        return self._out

    def detach(self, queue: asyncio.Queue[session_pb2.ConnectResponse | None] | None) -> None:
        """The stream of this queue is gone."""
        if queue is not None and self._out is queue:
            queue.put_nowait(None)
            self._out = None
            self.client_tools.interrupt()
            self._touch()

    def disconnect(self) -> None:
        """Ends the stream, if there is one."""
        self.detach(self._out)

    def go_away(self, seconds: float) -> None:
        """Tells the client that this replica ends soon: it finishes what is open and goes on elsewhere."""
        self._send(
            session_pb2.ConnectResponse(go_away=session_pb2.GoAway(seconds=seconds, reason="the replica is stopping"))
        )

    def abandon(self) -> None:
        """The replica ends: nothing is decided any more, so that the journal says what another owner may go on with.

        What ran ahead is lost with its owner, and the ledger says so.
        """
        self.apply(self.session.machine.lose("the replica ends", self._now()))
        self.leaving = True
        if self._timer is not None:
            self._timer.cancel()
        self.disconnect()

    @property
    def attached(self) -> bool:
        """A stream is connected."""
        return self._out is not None

    def wait_for(self, call: tuple[int, int]) -> asyncio.Future[session_pb2.CallResult]:
        """The answer of a call, for unary clients."""
        future: asyncio.Future[session_pb2.CallResult] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(call, []).append(future)
        return future

    def _send(self, message: session_pb2.ConnectResponse) -> bool:
        if self._out is None:
            return False
        self._out.put_nowait(message)
        return True

    def _touch(self) -> None:
        self.used_at = asyncio.get_running_loop().time()

    # ------------------------------------------------------------ effects

    def apply(self, effects: list[Effect]) -> None:
        """Performs effects, in order, without waiting for any."""
        self._touch()
        if self.leaving:
            return
        for effect in effects:
            self._perform(effect)
        if self.session.machine.running:
            self.quiet.clear()
        else:
            self.quiet.set()
            self.step.answered(self._now())
        self._arm()

    def _now(self) -> float:
        return self._ports.monotonic()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Append():
                self.journal.write(effect)
            case Execute():
                self._execute(effect)
            case Promote():
                self._promote(effect)
            case CancelExecution(execution):
                task = self._executions.get(execution)
                if task is not None:
                    task.cancel()
            case MergeFork():
                self._spawn(self._merge(effect), "merge")
            case DropFork(fork):
                self._spawn(self._ports.workers.drop(fork, self.session.caller, self.session.context.session), "drop")
            case ReadShared():
                self._spawn(self._read_shared(effect), "read-shared")
            case BumpShared():
                self._spawn(self._bump_shared(effect), "bump-shared")
            case Certify():
                self._spawn(self._certify(effect), "certify")
            case Answer():
                self._answer(effect)
            case Record():
                self._record(effect)

    def _spawn(self, work: Coroutine[object, object, object], name: str) -> None:
        self._ports.tasks.spawn(work, name=name)

    def _resume(self, token: int, answer: object) -> None:
        self.apply(self.session.machine.resume(token, answer, self._now()))

    def acknowledged(self, token: int, stored: bool) -> None:
        """The journal answers for an event."""
        self._resume(token, stored)

    def _arm(self) -> None:
        """Sets the timer for the machine's next time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.session.machine.next_time()
        if due is not None and not self.closed:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        used_at = self.used_at
        self.apply(self.session.machine.tick(self._now()))
        self.used_at = used_at

    # ------------------------------------------------------------ executions

    def _execute(self, effect: Execute) -> None:
        if effect.speculative and not self._may_launch():
            self._refuse_slot(effect)
            return
        task = self._ports.tasks.spawn(self._run(effect), name=f"execute {effect.prepared.tool}")
        self._executions[effect.execution] = task

        def ended(_: object) -> None:
            self._executions.pop(effect.execution, None)
            if effect.speculative:
                self._ports.observer.release()

        task.add_done_callback(ended)

    def _may_launch(self) -> bool:
        """Takes a place for a speculation, at once: others may be launched before its task begins."""
        session = self.session
        if not self._ports.workers.has_slot(session.context.session):
            return False
        return self._ports.observer.reserve(session.policy.concurrent)

    def _refuse_slot(self, effect: Execute) -> None:
        result = ExecutionResult(status=CallStatus.UNAVAILABLE, not_started=True, no_slot=True)
        asyncio.get_running_loop().call_soon(self._finished, effect.execution, result)

    async def _run(self, effect: Execute) -> None:
        result = ExecutionResult(status=CallStatus.CANCELLED, failure=_STOPPED)
        session = self.session
        with self._ports.observer.execution(effect, self.step.context):
            try:
                if effect.prepared.in_client:
                    result = await self.client_tools.call(effect)
                else:
                    result = await self._ports.workers.execute(
                        effect, session.caller, session.context.session, session.label
                    )
            finally:
                if result.no_slot:
                    self._ports.observer.refused(effect.execution)
                self._finished(effect.execution, result)

    def _finished(self, execution: str, result: ExecutionResult) -> None:
        self.apply(self.session.machine.execution_finished(execution, result, self._now()))

    def _promote(self, effect: Promote) -> None:
        session = self.session
        self._spawn(
            self._ports.workers.promote(
                effect.execution, effect.timeout_seconds, session.caller, session.context.session
            ),
            "promote",
        )

    async def _merge(self, effect: MergeFork) -> None:
        merged = await self._ports.workers.merge(effect.fork, self.session.caller, self.session.context.session)
        self._resume(effect.token, merged)

    async def _read_shared(self, effect: ReadShared) -> None:
        answer: Mapping[str, int] | None = None
        try:
            answer = await self._ports.shared.read(self.session.caller.tenant, effect.marks)
        except ForerunError as error:
            _LOG.warning("shared generations cannot be read", extra={"fields": {"error.type": error.reason}})
        self._resume(effect.token, answer)

    async def _bump_shared(self, effect: BumpShared) -> None:
        """Counts a write. Before a write it may fail, and the write does not start; after one it is owed."""
        stored = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if effect.token is None else _BUMP_SECONDS):
                while not stored:
                    try:
                        await self._ports.shared.bump(self.session.caller.tenant, effect.keys)
                        stored = True
                    except ForerunError:
                        await asyncio.sleep(_RETRY_SECONDS)
        if effect.token is not None:
            self._resume(effect.token, stored)

    async def _certify(self, effect: Certify) -> None:
        tool = self.session.tools.get(effect.prepared.tool)
        version = tool.version if tool is not None else ""
        verdict = await self._ports.certifier.certify(effect, self.session.caller, version)
        self._resume(effect.token, verdict)

    # ------------------------------------------------------------ answers and records

    def _answer(self, effect: Answer) -> None:
        answer = effect.answer
        session_id = self.session.context.session
        self._ports.observer.answered(answer)
        content = answer.result.content if answer.result is not None else b""
        inline = len(content) <= limits.CHUNK_BYTES
        waiting = self._waiters.pop(answer.call, [])
        if effect.conflict and waiting:
            # Only who asked last used the key for something else; the others still wait for the call that runs.
            waiting, self._waiters[answer.call] = waiting[-1:], waiting[:-1]
        for future in waiting:
            if not future.done():
                future.set_result(call_result(session_id, answer, content=True))
        if not inline:
            key = common_pb2.CallKey(session=session_id, turn=answer.call[0], index=answer.call[1])
            for start in range(0, len(content), limits.CHUNK_BYTES):
                chunk = session_pb2.ResultChunk(call=key, data=content[start : start + limits.CHUNK_BYTES])
                self._send(session_pb2.ConnectResponse(chunk=chunk))
        self._send(session_pb2.ConnectResponse(result=call_result(session_id, answer, content=inline)))

    def _record(self, effect: Record) -> None:
        session = self.session
        self._ports.observer.recorded(session.caller.tenant, effect.entry)
        if not effect.publish:
            return
        line = ledger_line(session.context, session.policy.label, session.machine.mode, effect.entry)
        subject = subjects.ledger(session.caller.tenant, session.context.session)
        self._ports.outbox.put(subject, line.SerializeToString(), line.id)
        if effect.prepared is None:
            return
        prepared = effect.prepared
        request = verification_pb2.AuditRequest(
            line=line,
            action=common_pb2.Action(tool=prepared.tool, tool_version=prepared.version, arguments=prepared.arguments),
            workspace=session.context.session if prepared.uses_workspace else "",
            contract=contract_message(prepared.contract),
            credential_scope=session.caller.credential_scope,
            session_label=session.label,
            contracts=[contract_message(tool.contract(session.policy)) for tool in session.tools.values()],
            partition=subjects.partition(
                session.caller.tenant, session.context.agent, partitions=self._ports.partitions
            ),
        )
        self._ports.outbox.put(subjects.audit(session.caller.tenant), request.SerializeToString(), f"audit-{line.id}")

    # ------------------------------------------------------------ the end

    def close(self, reason: str) -> None:
        """Ends the session."""
        if self.closed:
            return
        self.apply(self.session.machine.close(reason, self._now()))
        self._send(session_pb2.ConnectResponse(ended=self.ended()))
        self._end()
        self._spawn(self._forget_on_worker(), "close-session")

    async def _forget_on_worker(self) -> None:
        """Drops the session's workspace, once the journal has the session's end: only then it was ours to end."""
        if await self.journal.drain(_CLOSE_SECONDS) and not self.journal.replaced:
            await self._ports.workers.close_session(self.session.caller, self.session.context.session)

    def ended(self) -> session_pb2.EndSessionResponse:
        """The session's totals, as the client gets them at its end."""
        return session_pb2.EndSessionResponse(totals=totals_message(self.session.machine.totals, sessions=0))

    def lose(self) -> None:
        """Another owner has the session."""
        if self.closed:
            return
        self.apply(self.session.machine.lose("taken over", self._now()))
        self._end()

    def _end(self) -> None:
        self.closed = True
        self.journal.finish()
        if self._timer is not None:
            self._timer.cancel()
        for futures in self._waiters.values():
            for future in futures:
                future.cancel()
        self._waiters.clear()
        self._ended(self)


_STOPPED = Failure("CALL_CANCELLED", "the execution was stopped")
