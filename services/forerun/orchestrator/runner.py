"""Runs one session's machine: performs its effects and feeds back what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

from forerun.core.ledger import EntryKind
from forerun.core.outcomes import CallStatus, Mode
from forerun.core.session import (
    Answer,
    Append,
    AwaitStored,
    BeginShared,
    BumpShared,
    CallAnswer,
    CallIntent,
    CancelExecution,
    Certify,
    DropFork,
    Effect,
    Execute,
    ExecutionResult,
    MergeFork,
    Promote,
    ReadShared,
    Record,
)
from forerun.orchestrator.audits import audit_request
from forerun.orchestrator.executions import Executions
from forerun.orchestrator.journal import Journal
from forerun.orchestrator.outlet import Outlet
from forerun.orchestrator.ports import Ports
from forerun.orchestrator.records import ledger_line, totals_message
from forerun.orchestrator.session import Session
from forerun.runtime import subjects
from forerun.runtime.errors import Aborted, ErrorReason, FailedPrecondition, ForerunError
from forerun.runtime.metrics_table import SessionResult
from forerun.v1 import session_pb2

_LOG: Final = logging.getLogger(__name__)
_BUMP_SECONDS: Final = 4.0
_RETRY_SECONDS: Final = 0.2
_CLOSE_SECONDS: Final = 30.0

OWNER_CHANGED: Final = Aborted(
    ErrorReason.SESSION_TAKEN_OVER, "the session goes on elsewhere; connect again and send open calls again"
)
"""Ends what waits here for a session that another owner has."""


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
        self.outlet = Outlet(session.context.session, self._touch)
        journal.after_answers = self.outlet.when_sent
        self._ports = ports
        self.step = ports.observer.step(session.context.session, session.context.agent)
        self._ended = ended
        self._executions = Executions(session, ports, self.outlet.client_tools, self.step, self._finished)
        self._unanswered = 0
        self._earned = 0.0
        self._unsaid: list[Effect] = []
        self._timer: asyncio.TimerHandle | None = None
        self.used_at = asyncio.get_running_loop().time()
        self.closed = False
        self.leaving = False
        self._lost = False
        self.settled = asyncio.Event()
        self.quiet = asyncio.Event()
        self.quiet.set()

    def abandon(self) -> None:
        """The replica ends: nothing is decided any more, so that the journal says what another owner may go on with.

        What ran ahead is lost with its owner, and the ledger says so.
        """
        self.apply(self.session.machine.lose("the replica ends", self._now()))
        self.leaving = True
        self._ports.observer.ended(SessionResult.SENT_ON)
        if self._timer is not None:
            self._timer.cancel()
        self.outlet.disconnect()

    def _touch(self) -> None:
        self.used_at = asyncio.get_running_loop().time()

    # ------------------------------------------------------------ effects

    def apply(self, effects: list[Effect]) -> None:
        """Performs effects, in order, without waiting for any."""
        self._touch()
        open_calls = self.session.machine.unanswered
        self._ports.places.unanswered(open_calls - self._unanswered)
        self._unanswered = open_calls
        earned = self.session.machine.credits_earned
        self._ports.observer.earned(earned - self._earned)
        self._earned = earned
        if self.leaving:
            return
        self._say()
        if any(isinstance(effect, Append) and isinstance(effect.event, CallIntent) for effect in effects):
            # What may not be repeated waits for the journal: its intent leaves before the answers beside it are made.
            self._unsaid += [effect for effect in effects if _may_follow(effect)]
            effects = [effect for effect in effects if not _may_follow(effect)]
        for effect in effects:
            self._perform(effect)
        if self._unsaid:
            asyncio.get_running_loop().call_soon(self._say)  # after the journal, which was woken before
        if self.session.machine.running:
            self.quiet.clear()
        else:
            self.quiet.set()
            self.step.answered(self._now())
        self._arm()

    def _say(self) -> None:
        """Performs what an intent went before."""
        unsaid, self._unsaid = self._unsaid, []
        for effect in unsaid:
            self._perform(effect)

    def _now(self) -> float:
        return self._ports.monotonic()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Append():
                self.journal.write(effect)
            case AwaitStored(token, since):
                self.journal.tell_stored(token, since)
            case Execute():
                self._execute(effect)
            case Promote():
                self._promote(effect)
            case CancelExecution():
                self._executions.cancel(effect)
            case MergeFork():
                self._spawn(self._merge(effect), "merge")
            case DropFork(fork):
                self._spawn(self._ports.workers.drop(fork, self.session.caller, self.session.context.session), "drop")
            case ReadShared():
                self._spawn(self._read_shared(effect), "read-shared")
            case BeginShared():
                self._spawn(self._store_shared(effect), "begin-shared")
            case BumpShared():
                self._spawn(self._store_shared(effect), "bump-shared")
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
        if effect.speculative and not self._may_launch(effect.execution):
            self._refuse_slot(effect)
            return
        self._executions.start(effect)

    def _may_launch(self, execution: str) -> bool:
        """Takes a place for a speculation, at once: others may be launched before its task begins."""
        session = self.session
        if self._ports.certifier.silent or not self._ports.workers.has_slot(session.context.session):
            return False
        return self._ports.places.reserve(execution, session.policy.concurrent)

    def _refuse_slot(self, effect: Execute) -> None:
        result = ExecutionResult(status=CallStatus.UNAVAILABLE, not_started=True, no_slot=True)
        asyncio.get_running_loop().call_soon(self._finished, effect, result)

    def _finished(self, effect: Execute, result: ExecutionResult) -> None:
        if effect.speculative and result.not_started and not result.preempted:
            self._ports.observer.refused(effect.execution)
            self._ports.places.closed(effect.execution)
        self.apply(self.session.machine.execution_finished(effect.execution, result, self._now()))

    def _promote(self, effect: Promote) -> None:
        session = self.session
        self._spawn(
            self._ports.workers.promote(
                effect.execution, effect.timeout_seconds, session.caller, session.context.session
            ),
            "promote",
        )

    async def _merge(self, effect: MergeFork) -> None:
        merged = await self._ports.workers.merge(effect, self.session.caller, self.session.context.session)
        self._resume(effect.token, merged)

    async def _read_shared(self, effect: ReadShared) -> None:
        answer: Mapping[str, int] | None = None
        try:
            answer = await self._ports.shared.read(self.session.caller.tenant, effect.marks)
        except ForerunError as error:
            _LOG.warning("shared generations cannot be read", extra={"fields": {"error.type": error.reason}})
        self._resume(effect.token, answer)

    async def _store_shared(self, effect: BeginShared | BumpShared) -> None:
        """Tells of a write. Before a write it may fail, and the write does not start; after one it is owed."""
        shared, tenant, stored = self._ports.shared, self.session.caller.tenant, False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if effect.token is None else _BUMP_SECONDS):
                while not stored:
                    try:
                        if isinstance(effect, BeginShared):
                            await shared.begin(tenant, effect.write, effect.keys, effect.seconds)
                        else:
                            await shared.end(tenant, effect.write, effect.keys, unsettled=effect.unsettled)
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
        if answer.result is not None and answer.result.stored_bytes:
            self._spawn(self._answer_from_store(answer), "stored-answer")
            return
        self._ports.observer.answered(answer)
        self.outlet.answer(answer, conflict=effect.conflict)

    async def _answer_from_store(self, answer: CallAnswer) -> None:
        """Answers again what an earlier owner has answered: the content comes from the object store."""
        self.outlet.answer(await self._ports.results.fill(self.session.caller.tenant, answer), conflict=False)

    def _record(self, effect: Record) -> None:
        session = self.session
        self._ports.observer.recorded(session.caller.tenant, effect.entry)
        if effect.entry.kind is EntryKind.SPECULATION:
            self._ports.places.closed(effect.entry.speculation)
        if effect.publish:
            # A turn later it is known what is answered now; that comes first.
            publish = partial(self._publish, effect, session.policy.label, session.machine.mode)
            asyncio.get_running_loop().call_soon(self.outlet.when_sent, publish)

    def _publish(self, effect: Record, policy: str, mode: Mode) -> None:
        session = self.session
        line = ledger_line(session.context, policy, mode, effect.entry)
        subject = subjects.ledger(session.caller.tenant, session.context.session)
        self._ports.outbox.put(subject, line.SerializeToString(deterministic=True), line.id)
        if effect.prepared is None:
            return
        worker = self._ports.workers.holder(session.context.session)
        request = audit_request(session, effect.prepared, line, worker=worker, partitions=self._ports.partitions)
        data = request.SerializeToString(deterministic=True)
        self._ports.outbox.put(subjects.audit(session.caller.tenant), data, f"audit-{line.id}")

    # ------------------------------------------------------------ the end

    def close(self, reason: str, result: SessionResult = SessionResult.FINISHED) -> None:
        """Ends the session. Its client hears of it once all that ran has ended, or was given up; see `settled`."""
        if self.closed:
            return
        self._ports.observer.ended(result)
        self._executions.ending = True
        self.apply(self.session.machine.close(reason, self._now()))
        self._end()
        self._spawn(self._wind_down(), "close-session")

    async def _wind_down(self) -> None:
        """Tells the client of the end when everything has ended, and lets the worker forget the session."""
        try:
            await self._executions.wait()
        finally:
            self.settled.set()
            self.outlet.send(session_pb2.ConnectResponse(ended=self.ended()))
            self.outlet.disconnect()
        # Only once the journal has the session's end it was ours to end.
        if await self.journal.drain(_CLOSE_SECONDS) and not self.journal.replaced:
            await self._ports.workers.close_session(self.session.caller, self.session.context.session)

    def ended(self) -> session_pb2.EndSessionResponse:
        """The session's totals, as the client gets them at its end."""
        totals = totals_message(self.session.machine.totals, sessions=0)
        return session_pb2.EndSessionResponse(totals=totals, unsettled_executions=self._executions.unsettled)

    @property
    def gone(self) -> ForerunError:
        """Why nothing is done here any more for a session that is closed or leaving."""
        if self.leaving or self._lost:
            return OWNER_CHANGED
        session = self.session.context.session
        return FailedPrecondition(
            ErrorReason.SESSION_ENDED, "the session has ended; open a new one", metadata={"session": session}
        )

    def lose(self) -> None:
        """Another owner has the session."""
        if self.closed:
            return
        self._lost = True
        if not self.leaving:
            self._ports.observer.ended(SessionResult.TAKEN_OVER)
        self.apply(self.session.machine.lose("taken over", self._now()))
        self._ports.workers.forget(self.session.context.session)
        self._end()
        self.settled.set()
        self.outlet.disconnect()

    def _end(self) -> None:
        self.closed = True
        self.journal.finish()
        if self._timer is not None:
            self._timer.cancel()
        self.outlet.close()
        self._ended(self)


def _may_follow(effect: Effect) -> bool:
    """It may come after the journal was told. A refusal goes to who asked last: by then that may be somebody else."""
    return isinstance(effect, Record) or (isinstance(effect, Answer) and not effect.conflict)
