"""The sessions of one replica: opened, taken over, switched, closed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from forerun.core import limits
from forerun.core.candidates import Candidate
from forerun.core.candidates import problems as candidate_problems
from forerun.core.governor import Sites
from forerun.core.outcomes import Mode
from forerun.core.session import (
    AskedCall,
    Effect,
    Failure,
    PreparedCall,
    Proposal,
    SessionFacts,
    SessionMachine,
    SessionOpened,
)
from forerun.orchestrator.journal import Journal
from forerun.orchestrator.ownership import Claim, Ownership
from forerun.orchestrator.policies import PolicySource
from forerun.orchestrator.preparation import Tool, client_tool_of
from forerun.orchestrator.records import EventContext
from forerun.orchestrator.restore import History, read_history
from forerun.orchestrator.runner import Ports, Runner, Session
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.orchestrator.switch import Switch
from forerun.runtime import subjects
from forerun.runtime.auth import Caller
from forerun.runtime.bus import Bus, Message
from forerun.runtime.clock import Clock
from forerun.runtime.errors import (
    ErrorReason,
    FailedPrecondition,
    ForerunError,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from forerun.runtime.ids import Ids
from forerun.runtime.policy import Policy, mode_of
from forerun.v1 import event_pb2, prediction_pb2, session_pb2

_LOG: Final = logging.getLogger(__name__)
_READ_PAGE: Final = 1_000
_TOOLS_ATTEMPTS: Final = 40
_TOOLS_RETRY_SECONDS: Final = 0.25
_SITE_TABLES: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the engine works with."""

    settings: OrchestratorSettings
    bus: Bus
    clock: Clock
    ids: Ids
    ports: Ports
    policies: PolicySource
    switch: Switch
    ownership: Ownership
    replica: str


class Orchestrator:
    """The sessions that this replica owns.

    Args:
        parts: What it works with.
    """

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._runners: dict[tuple[str, str], Runner] = {}
        self._opening: dict[tuple[str, str], asyncio.Lock] = {}
        self._sites: OrderedDict[tuple[str, str], Sites] = OrderedDict()

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._runners)

    def open_sessions(self, tenant: str) -> int:
        """Open sessions of one tenant."""
        return sum(owner == tenant for owner, _ in self._runners)

    # ------------------------------------------------------------ opening

    async def open(self, caller: Caller, hello: session_pb2.Hello) -> Runner:
        """The session's runner: the one that is open here, a new session, or one that is taken over.

        Raises:
            InvalidArgument: the session id is no UUID, or a name is missing or too long.
            PermissionDenied: the session belongs to another principal.
            NotFound: it should be resumed and is not known.
            FailedPrecondition: it has ended.
            ResourceExhausted: too many sessions are open.
            Unavailable: the broker or the workers cannot be asked.
        """
        _check(hello)
        key = (caller.tenant, hello.session)
        lock = self._opening.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                runner = self._runners.get(key)
                if runner is not None and not runner.closed:
                    _same_caller(runner, caller)
                    self._declare(runner.session, hello)
                    return runner
                return await self._open_new(caller, hello)
        finally:
            if not lock.locked():
                self._opening.pop(key, None)

    def find(self, caller: Caller, session: str) -> Runner | None:
        """The runner of a session that is open here.

        Raises:
            PermissionDenied: it belongs to another principal.
        """
        runner = self._runners.get((caller.tenant, session))
        if runner is not None:
            _same_caller(runner, caller)
        return runner

    async def _open_new(self, caller: Caller, hello: session_pb2.Hello) -> Runner:
        if len(self._runners) >= self._p.settings.max_sessions:
            raise ResourceExhausted(
                ErrorReason.QUEUE_FULL,
                f"this replica has {len(self._runners)} open sessions, the most it takes (setting max_sessions)",
                metadata={"setting": self._p.settings.variable("max_sessions")},
                retry_after_seconds=1.0,
            )
        tools = await self._tools(caller, hello.session)
        claim = await self._p.ownership.claim(caller, hello.session, hello.agent, resume=hello.resume)
        subject = self._subject(caller.tenant, claim.agent, hello.session)
        history = History() if claim.epoch == 1 else await self._history(caller.tenant, subject)
        if history.ended:
            raise FailedPrecondition(
                ErrorReason.SESSION_ENDED, "the session has ended; open a new one", metadata={"session": hello.session}
            )
        runner = self._make(caller, hello, claim, subject, tools, history)
        self._runners[(caller.tenant, hello.session)] = runner
        self._p.ports.observer.sessions(len(self._runners))
        self._p.ports.tasks.spawn(runner.journal.run(), name="journal")
        runner.apply(self._first_effects(runner, history))
        return runner

    async def _tools(self, caller: Caller, session: str) -> dict[str, Tool]:
        """The tools of the workers; a worker that restarts is waited for, within a bound."""
        for attempt in range(_TOOLS_ATTEMPTS):
            try:
                return dict(await self._p.ports.workers.tools(caller, session))
            except Unavailable:
                if attempt == _TOOLS_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(_TOOLS_RETRY_SECONDS)
        return {}

    def _subject(self, tenant: str, agent: str, session: str) -> str:
        number = subjects.partition(tenant, agent, partitions=self._p.settings.partitions)
        return subjects.event(number, tenant, agent, session)

    async def _history(self, tenant: str, subject: str) -> History:
        messages: list[Message] = []
        after = 0
        while len(messages) < limits.JOURNAL_EVENTS_PER_SESSION:
            page = await self._p.bus.read(subject, after_sequence=after, limit=_READ_PAGE)
            messages.extend(page)
            if len(page) < _READ_PAGE:
                break
            after = page[-1].sequence or 0
        results = self._p.bus.objects("results")
        return await read_history(messages, lambda digest: results.get(digest, tenant))

    def _make(
        self,
        caller: Caller,
        hello: session_pb2.Hello,
        claim: Claim,
        subject: str,
        tools: dict[str, Tool],
        history: History,
    ) -> Runner:
        policy = self._p.policies.current.choose(caller.tenant, claim.agent)
        held_out = _held_out(hello.session, policy)
        mode = self._mode(caller.tenant, policy, hello.mode, held_out)
        facts = SessionFacts(
            tenant=caller.tenant,
            principal=caller.principal,
            credential_scope=caller.credential_scope,
            agent=claim.agent,
            session=hello.session,
            epoch=claim.epoch,
            mode=mode,
        )
        context = EventContext(
            caller.tenant,
            caller.principal,
            caller.credential_scope,
            claim.agent,
            hello.session,
            claim.epoch,
            self._p.clock,
            self._p.ids,
        )
        opened = history.opened
        session = Session(
            caller=caller,
            context=context,
            machine=SessionMachine(facts, policy.session, self._site_table(caller.tenant, claim.agent)),
            policy=policy,
            tools=tools,
            wanted=hello.mode,
            declared=tuple(hello.tools) or (tuple(opened.tools) if opened else ()),
            label=hello.label or (opened.label if opened else ""),
            held_out=held_out,
        )
        self._declare(session, hello)
        runner: Runner

        def acknowledged(token: int, stored: bool) -> None:
            runner.acknowledged(token, stored)

        def lost() -> None:
            runner.lose()

        journal = Journal(
            self._p.bus,
            subject,
            context,
            acknowledged=acknowledged,
            lost=lost,
            owner=self._p.replica,
            sequence=history.sequence,
        )
        runner = Runner(session, self._p.ports, journal, self._ended)
        return runner

    @staticmethod
    def _declare(session: Session, hello: session_pb2.Hello) -> None:
        """Adds the tools that live in the client. They cannot hide tools of the platform."""
        own = {one.name: client_tool_of(one) for one in hello.client_tools}
        session.tools = own | dict(session.tools)
        if session.declared and own:
            session.declared = tuple(dict.fromkeys((*session.declared, *own)))

    def _first_effects(self, runner: Runner, history: History) -> list[Effect]:
        session, now = runner.session, self._p.ports.monotonic()
        declared = session.declared or tuple(sorted(session.tools))
        event = SessionOpened(declared, session.machine.mode, session.held_out, session.policy.label, session.label)
        if history.opened is None:
            return session.machine.open(event, now)
        unknown = {
            key: AskedCall(
                asked.index,
                asked.provider_call_id,
                asked.action.tool,
                asked.action.arguments,
                self.prepare(session, asked.action.tool, asked.action.arguments),
            )
            for key, asked in history.unknown().items()
        }
        return session.machine.restore(
            event,
            number=history.number,
            last_turn=history.last_turn,
            closed=history.closed,
            unknown=unknown,
            user_texts=history.user_texts,
            now=now,
        )

    def _mode(self, tenant: str, policy: Policy, wanted: int, held_out: bool) -> Mode:
        if held_out or self._p.switch.off(tenant) is not None:
            return Mode.OFF
        if not wanted:
            return policy.mode
        asked = mode_of(wanted)  # type: ignore[arg-type]
        return min(asked, policy.mode, key=lambda mode: mode.rank)

    def _site_table(self, tenant: str, agent: str) -> Sites:
        key = (tenant, agent)
        table = self._sites.pop(key, None) or Sites()
        self._sites[key] = table
        if len(self._sites) > _SITE_TABLES:
            self._sites.popitem(last=False)
        return table

    # ------------------------------------------------------------ calls and events

    def prepare(self, session: Session, tool: str, arguments: bytes) -> PreparedCall | Failure:
        """A prepared call of a session, or why it is refused."""
        return session.preparation.prepare(session.tool(tool), tool, arguments, session.policy)

    def ask(self, runner: Runner, batch: session_pb2.CallBatch) -> None:
        """Takes the calls of one message.

        Raises:
            InvalidArgument: the message is not well formed: nothing of it runs.
        """
        _check_batch(batch)
        session = runner.session
        calls = [
            AskedCall(
                one.index,
                one.provider_call_id,
                one.action.tool,
                one.action.arguments,
                self.prepare(session, one.action.tool, one.action.arguments),
            )
            for one in batch.calls
        ]
        timeout = batch.timeout_seconds if batch.HasField("timeout_seconds") else None
        now = self._p.ports.monotonic()
        runner.apply(session.machine.asked(batch.turn, calls, now, timeout_seconds=timeout))

    def record(self, runner: Runner, event: session_pb2.ClientEvent) -> None:
        """Takes an event of the client."""
        machine, now = runner.session.machine, self._p.ports.monotonic()
        match event.WhichOneof("event"):
            case "user_turn":
                runner.apply(machine.user_turn(event.user_turn.text, now))
            case "model_started":
                runner.apply(machine.model_started(event.model_started.turn, now))
            case "assistant_message":
                message = event.assistant_message
                runner.apply(machine.assistant_message(message.turn, message.text, now))
            case "task_outcome":
                outcome: event_pb2.TaskOutcome = event.task_outcome
                runner.apply(machine.task_outcome(outcome.reward, outcome.label, now))
            case None:
                raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "the event says nothing")

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
        )
        if candidate_problems(candidate):
            return None
        return Proposal(candidate, self.prepare(session, candidate.tool, candidate.arguments), self._p.ids.fraction())

    # ------------------------------------------------------------ changes from outside

    def refresh(self) -> None:
        """Policies or the switch changed: every session follows at once."""
        now = self._p.ports.monotonic()
        for runner in list(self._runners.values()):
            session = runner.session
            policy = self._p.policies.current.choose(session.caller.tenant, session.context.agent)
            if policy.version != session.policy.version:
                session.policy = policy
                runner.apply(session.machine.set_policy(policy.session, now))
            off = self._p.switch.off(session.caller.tenant)
            mode = self._mode(session.caller.tenant, policy, session.wanted, session.held_out)
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
        """Ends sessions whose client is gone or silent."""
        now = asyncio.get_running_loop().time()
        for runner in list(self._runners.values()):
            idle = now - runner.used_at
            if not runner.attached and not runner.session.machine.running:
                if idle > self._p.settings.reconnect_seconds:
                    runner.close("the client went away")
            elif idle > self._p.settings.session_idle_seconds and not runner.session.machine.running:
                runner.close("idle")

    def _ended(self, runner: Runner) -> None:
        key = (runner.session.caller.tenant, runner.session.context.session)
        if self._runners.get(key) is runner:
            del self._runners[key]
        runner.disconnect()
        self._p.ports.observer.sessions(len(self._runners))

    async def leave(self, grace_seconds: float) -> None:
        """The process ends: clients are told, open calls may finish, the rest goes on under another owner."""
        runners = list(self._runners.values())
        for runner in runners:
            runner.go_away(grace_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await asyncio.gather(*(runner.quiet.wait() for runner in runners))
        for runner in runners:
            runner.abandon()

    async def drain(self, grace_seconds: float) -> None:
        """Writes what the journals owe: sessions stay there, so that another replica goes on with them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_seconds
        for runner in list(self._runners.values()):
            await runner.journal.drain(max(0.0, deadline - loop.time()))


def _check(hello: session_pb2.Hello) -> None:
    try:
        uuid.UUID(hello.session)
    except ValueError:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID, "`session` must be a UUID (version 7), made by the client"
        ) from None
    if not 0 < len(hello.agent) <= limits.NAME_CHARS:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID, f"`agent` must have 1 to {limits.NAME_CHARS} characters (NAME_CHARS)"
        )
    names = [*hello.tools, *(tool.name for tool in hello.client_tools), hello.label or "-"]
    if len(names) > limits.CALLS_PER_MESSAGE or any(not 0 < len(name) <= limits.NAME_CHARS for name in names):
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"at most {limits.CALLS_PER_MESSAGE} tools, each name with 1 to {limits.NAME_CHARS} characters",
        )


def _check_batch(batch: session_pb2.CallBatch) -> None:
    if not batch.turn or not batch.calls:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "a batch needs a `turn` from 1 on and at least one call")
    if len(batch.calls) > limits.CALLS_PER_MESSAGE:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"{len(batch.calls)} calls in one message; at most {limits.CALLS_PER_MESSAGE} (CALLS_PER_MESSAGE)",
            metadata={"limit": "CALLS_PER_MESSAGE"},
        )
    if len({call.index for call in batch.calls}) != len(batch.calls):
        raise InvalidArgument(
            ErrorReason.PROTOCOL_VIOLATION, "two calls of the message have the same index; number them from 0 on"
        )
    if batch.HasField("timeout_seconds") and not 0 < batch.timeout_seconds <= limits.DEADLINE_MAX_SECONDS:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"timeout_seconds must be above 0 and at most {limits.DEADLINE_MAX_SECONDS:g} (DEADLINE_MAX_SECONDS)",
        )


def _same_caller(runner: Runner, caller: Caller) -> None:
    owner = runner.session.caller
    if (owner.principal, owner.credential_scope) != (caller.principal, caller.credential_scope):
        raise PermissionDenied(
            ErrorReason.CALLER_NOT_ALLOWED, "the session belongs to another principal or to other rights"
        )


def _held_out(session: str, policy: Policy) -> bool:
    """Whether the hold-out takes a session: by hash, so that every replica and every restart agree."""
    digest = hashlib.blake2b(f"{policy.name}\0{session}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64 < policy.hold_out
