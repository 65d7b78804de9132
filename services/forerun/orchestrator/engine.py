"""The sessions of one replica: opened, taken over, switched, closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

from google.protobuf.message import DecodeError

from forerun.core import limits
from forerun.core.candidates import Candidate
from forerun.core.candidates import problems as candidate_problems
from forerun.core.plan import PlanOptions
from forerun.core.resources import ROOT
from forerun.core.session import Proposal
from forerun.orchestrator.journal import Journal
from forerun.orchestrator.opening import Opening, Parts, check_hello, declare
from forerun.orchestrator.places import SessionPlaces
from forerun.orchestrator.planning import PlanRun
from forerun.orchestrator.records import guess_entry
from forerun.orchestrator.requests import check_batch, check_journal, take_event
from forerun.orchestrator.runner import Runner
from forerun.orchestrator.session import Session
from forerun.runtime.auth import Caller
from forerun.runtime.bus import Message
from forerun.runtime.errors import (
    ErrorReason,
    FailedPrecondition,
    ForerunError,
    PermissionDenied,
    Unavailable,
)
from forerun.runtime.metrics_table import SessionResult
from forerun.v1 import prediction_pb2, session_pb2

_LOG: Final = logging.getLogger(__name__)


class Orchestrator:
    """The sessions that this replica owns.

    Args:
        parts: What it works with.
    """

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._runners: dict[tuple[str, str], Runner] = {}
        self._opening = Opening(parts, self._ended)
        self._journals: list[Journal] = []  # in order: a set of objects has another one in every run
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}
        self._leaving = False
        settings = parts.settings
        self._places = SessionPlaces(
            sessions=settings.max_sessions,
            sessions_per_tenant=settings.max_sessions_per_tenant,
            setting=settings.variable("max_sessions"),
            tenant_setting=settings.variable("max_sessions_per_tenant"),
        )

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._runners)

    def open_sessions(self, tenant: str) -> int:
        """Open sessions of one tenant."""
        return self._places.of(tenant)

    # ------------------------------------------------------------ opening

    async def open(self, caller: Caller, hello: session_pb2.Hello) -> Runner:
        """The session's runner: the one that is open here, a new session, or one that is taken over.

        Raises:
            InvalidArgument: the session id is no UUID, or a name is missing or too long.
            PermissionDenied: the session belongs to another principal.
            NotFound: it should be resumed and is not known.
            FailedPrecondition: it has ended.
            ResourceExhausted: too many sessions are open.
            Unavailable: the broker or the workers cannot be asked, or this replica is stopping.
        """
        check_hello(hello)
        key = (caller.tenant, hello.session)
        async with self._one_at_a_time(key):
            runner = self._runners.get(key)
            if runner is not None and not runner.closed and not runner.leaving:
                _same_caller(runner, caller)
                if await self._opening.still_owned(runner):
                    declare(runner.session, hello)
                    await self._count_direct_writes(runner, hello)
                    return runner
                runner.lose()
            self._admit()
            self._places.take(caller.tenant)
            try:
                runner = self._runners[key] = await self._opening.open(caller, hello)
            except BaseException:
                self._places.leave(caller.tenant)
                raise
            self._journals.append(runner.journal)
            self._p.ports.observer.sessions(len(self._runners))
            if self._leaving:
                runner.abandon()
            self._admit()
            await self._count_direct_writes(runner, hello)
            return runner

    async def _count_direct_writes(self, runner: Runner, hello: session_pb2.Hello) -> None:
        """What the client ran around the platform may have written anything. Counted before it is heard again.

        Raises:
            Unavailable: it cannot be counted, so this client must not be served from what is known.
        """
        if hello.direct_writes == session_pb2.DIRECT_WRITES_UNSPECIFIED:
            return
        shared, tenant = self._p.ports.shared, runner.session.caller.tenant
        unsettled = hello.direct_writes != session_pb2.DIRECT_WRITES_ENDED  # also what this version does not know
        await shared.end(tenant, "", (ROOT,), unsettled=unsettled)
        runner.apply(runner.session.machine.wrote_directly(self._p.ports.monotonic(), unsettled=unsettled))

    def _admit(self) -> None:
        """Refuses sessions that this replica would have to send on at once."""
        if self._leaving:
            raise Unavailable(
                ErrorReason.SHUTTING_DOWN,
                "this replica is stopping; another one takes the session",
                retry_after_seconds=0.5,
            )

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, key: tuple[str, str]) -> AsyncIterator[None]:
        """Openings of one session wait for each other."""
        lock, waiting = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[key]
            if waiting == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, waiting - 1)

    def find(self, caller: Caller, session: str) -> Runner | None:
        """The runner of a session that is open here.

        Raises:
            PermissionDenied: it belongs to another principal.
        """
        runner = self._runners.get((caller.tenant, session))
        if runner is not None:
            _same_caller(runner, caller)
        return runner

    async def end(self, caller: Caller, session: str, reason: str) -> session_pb2.EndSessionResponse:
        """Ends a session, also one of another replica, which loses it by that. One that has ended stays so.

        Raises:
            InvalidArgument: the session id is no UUID.
            NotFound: nobody has opened it.
            PermissionDenied: it belongs to another principal.
            Unavailable: the broker cannot be asked, or this replica is stopping.
        """
        runner = self.find(caller, session)
        if runner is None:
            try:
                # Its own agent is known from its opening; what stands here is not used.
                runner = await self.open(caller, session_pb2.Hello(session=session, agent="-", resume=True))
            except FailedPrecondition:
                return session_pb2.EndSessionResponse()
        runner.close(reason or "ended by the client")
        await runner.settled.wait()
        return runner.ended()

    # ------------------------------------------------------------ calls and events

    def ask(self, runner: Runner, batch: session_pb2.CallBatch) -> None:
        """Takes the calls of one message.

        Raises:
            InvalidArgument: the message is not well formed: nothing of it runs.
            ResourceExhausted: too many calls wait on this replica, or the session's journal is full: the same.
        """
        check_batch(batch)
        session = runner.session
        if batch.turn > session.machine.last_turn:  # what is asked again was admitted before
            self._p.ports.places.admit(len(batch.calls))
            check_journal(session)
        calls = [session.asked(one) for one in batch.calls]
        timeout = batch.timeout_seconds if batch.HasField("timeout_seconds") else None
        now = self._p.ports.monotonic()
        runner.step.ask(now)
        runner.apply(session.machine.asked(batch.turn, calls, now, timeout_seconds=timeout))

    def partial(self, runner: Runner, message: session_pb2.PartialMessage) -> None:
        """Takes what is known of a message that still streams. What is wrong in it is said when it is complete."""
        if message.turn and len(message.calls) <= limits.CALLS_PER_MESSAGE:
            calls = [runner.session.asked(one) for one in message.calls]
            runner.apply(runner.session.machine.partial(message.turn, calls, self._p.ports.monotonic()))

    def plan(self, runner: Runner, turn: int, options: PlanOptions) -> PlanRun:
        """A plan of one message.

        Raises:
            ResourceExhausted: too many calls wait on this replica, or the session's journal is full.
        """
        if turn > runner.session.machine.last_turn:
            self._p.ports.places.admit(1)
            check_journal(runner.session)
        return PlanRun(runner, turn, options, ask=self.ask, cancel=self.cancel, monotonic=self._p.ports.monotonic)

    def record(self, runner: Runner, event: session_pb2.ClientEvent, event_id: str = "") -> int:
        """Takes an event of the client; its number in the session. One with an id may be sent again.

        Raises:
            InvalidArgument: it says nothing.
            ResourceExhausted: the session's journal is full.
        """
        machine, recorded = runner.session.machine, runner.session.recorded
        known = recorded.number(event_id) if event_id else None
        if known is not None:
            return known
        check_journal(runner.session)
        now = self._p.ports.monotonic()
        if event.HasField("model_started"):
            runner.step.begin(now)
        runner.apply(take_event(machine, event, now, event_id))
        if event_id:
            recorded.add(event_id, machine.number)
        return machine.number

    def cancel(self, runner: Runner, turn: int, index: int) -> None:
        """Takes a call back."""
        runner.apply(runner.session.machine.cancel((turn, index), self._p.ports.monotonic()))

    async def hear_candidates(self, message: Message) -> None:
        """Takes candidates of the predictor. What does not parse or has no session here is worthless, not wrong."""
        try:
            batch = prediction_pb2.Candidates.FromString(message.data)
        except DecodeError:
            return
        runner = self._runners.get((batch.tenant, batch.session))
        if runner is None or runner.closed:
            return
        proposals = [
            proposal
            for one in batch.candidates[: limits.CANDIDATES_PER_PREDICTION]
            if (proposal := self._proposal(runner.session, one)) is not None
        ]
        if batch.HasField("guess"):
            runner.apply(runner.session.machine.guessed(guess_entry(batch.guess), self._p.ports.monotonic()))
        expected = batch.expected_model_seconds if batch.HasField("expected_model_seconds") else None
        runner.apply(
            runner.session.machine.candidates(
                proposals,
                based_on=batch.based_on,
                expected_model_seconds=expected,
                now=self._p.ports.monotonic(),
            )
        )

    def _proposal(self, session: Session, message: prediction_pb2.Candidate) -> Proposal | None:
        candidate = Candidate(
            tool=message.action.tool,
            arguments=message.action.arguments,
            probability=message.probability,
            evidence=message.evidence,
            rank=message.rank,
            site=message.site,
            explanation=message.explanation[: limits.CANDIDATE_EXPLANATION_CHARS],
            expected_seconds=message.expected_seconds if message.HasField("expected_seconds") else None,
            prediction_seconds=message.prediction_seconds,
        )
        if candidate_problems(candidate):
            return None
        return Proposal(candidate, session.prepare(candidate.tool, candidate.arguments), self._p.ids.fraction())

    # ------------------------------------------------------------ changes from outside

    def refresh(self) -> None:
        """Policies or the switch changed: every session follows at once."""
        now = self._p.ports.monotonic()
        for runner in list(self._runners.values()):
            session = runner.session
            policy = self._p.policies.current.choose(session.caller.tenant, session.context.agent)
            if policy.session.version != session.policy.session.version:
                session.policy = policy
                runner.apply(session.machine.set_policy(policy.session, now))
            off = self._p.switch.off(session.caller.tenant)
            mode = self._opening.mode(session.caller.tenant, policy, session.wanted, session.held_out)
            runner.apply(session.machine.set_mode(mode, off.reason if off else "policy", now))

    def tools_changed(self) -> None:
        """A worker has other tools now: sessions look again."""
        for runner in list(self._runners.values()):
            self._p.ports.tasks.spawn(self._reload_tools(runner), name="reload-tools")

    async def _reload_tools(self, runner: Runner) -> None:
        session = runner.session
        try:
            tools = await self._p.ports.workers.tools(session.caller, session.context.session)
        except ForerunError as error:
            _LOG.warning("the tools cannot be listed", extra={"fields": {"error.type": error.reason}})
            return
        own = {name: tool for name, tool in session.tools.items() if tool.in_client}
        session.tools = own | dict(tools)

    async def sweep(self) -> None:
        """Ends sessions whose client is gone or silent, and counts what changes slowly."""
        now = asyncio.get_running_loop().time()
        self._journals = [journal for journal in self._journals if not journal.closed]
        for runner in list(self._runners.values()):
            idle = now - runner.used_at
            if runner.outlet.streamed and not runner.outlet.attached and not runner.session.machine.running:
                if idle > self._p.settings.reconnect_seconds:
                    runner.close("the client went away", SessionResult.IDLE)
            elif idle > self._p.settings.session_idle_seconds and not runner.session.machine.running:
                runner.close("idle", SessionResult.IDLE)
        self._p.ports.observer.sites(*self._opening.sites())

    def _ended(self, runner: Runner) -> None:
        key = (runner.session.caller.tenant, runner.session.context.session)
        if self._runners.get(key) is runner:
            del self._runners[key]
        self._places.leave(runner.session.caller.tenant)
        self._p.ports.observer.sessions(len(self._runners))

    async def leave(self, grace_seconds: float) -> None:
        """The process ends: clients are told, open calls may finish, the rest goes on under another owner."""
        self._leaving = True
        runners = list(self._runners.values())
        for runner in runners:
            runner.outlet.go_away(grace_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await asyncio.gather(*(_send_on(runner) for runner in runners))
        for runner in runners:
            if not runner.leaving:
                runner.abandon()

    async def drain(self, grace_seconds: float) -> None:
        """Writes what the journals owe: sessions stay there, so that another replica goes on with them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_seconds
        for journal in list(self._journals):
            await journal.drain(max(0.0, deadline - loop.time()))


async def _send_on(runner: Runner) -> None:
    """Lets go of a session at the first moment without an open call: its client may not have heard the goodbye yet."""
    while runner.session.machine.running:
        await runner.quiet.wait()
    runner.abandon()


def _same_caller(runner: Runner, caller: Caller) -> None:
    if not caller.acts_as(runner.session.caller):
        raise PermissionDenied(
            ErrorReason.CALLER_NOT_ALLOWED, "the session belongs to another principal or to other rights"
        )
