"""How a session comes to this replica: new, or taken over from the journal."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.core import limits
from forerun.core.canonical import CanonicalError
from forerun.core.outcomes import CallStatus, Mode
from forerun.core.schema import SchemaError, parse_schema
from forerun.core.session import AskedCall, Effect, PreparedCall, Replica, SessionFacts, SessionMachine, SessionOpened
from forerun.core.sites import Sites
from forerun.orchestrator.journal import Journal
from forerun.orchestrator.ownership import Claim, Ownership
from forerun.orchestrator.policies import PolicySource
from forerun.orchestrator.ports import Ports
from forerun.orchestrator.preparation import Tool, client_tool_of, schemas_of
from forerun.orchestrator.records import EventContext
from forerun.orchestrator.restore import History, read_on
from forerun.orchestrator.runner import Runner
from forerun.orchestrator.session import Session
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.runtime import subjects
from forerun.runtime.auth import Caller
from forerun.runtime.bus import Bus
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, FailedPrecondition, InvalidArgument, Unavailable
from forerun.runtime.ids import Ids
from forerun.runtime.policy import Policy, mode_of
from forerun.runtime.switch import Switch
from forerun.v1 import event_pb2, session_pb2

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


class Opening:
    """Opens sessions and takes them over.

    Args:
        parts: What the engine works with.
        ended: Called when a session that was opened has ended.
    """

    def __init__(self, parts: Parts, ended: Callable[[Runner], None]) -> None:
        self._p = parts
        self._ended = ended
        self._replica = Replica()
        self._sites: OrderedDict[tuple[str, str], Sites] = OrderedDict()

    async def open(self, caller: Caller, hello: session_pb2.Hello) -> Runner:
        """Makes this replica the owner of a session and starts its runner.

        Raises:
            NotFound: it should be resumed and is not known.
            PermissionDenied: it belongs to another principal.
            FailedPrecondition: it has ended.
            Unavailable: the broker or the workers cannot be asked.
        """
        tools = await self._tools(caller, hello.session)
        worker = self._p.ports.workers.place(hello.session)
        claim = await self._p.ownership.claim(caller, hello.session, hello.agent, worker=worker, resume=hello.resume)
        subject = self._subject(caller.tenant, claim.agent, hello.session)
        history = History() if claim.epoch == 1 else await self._history(subject)
        if history.ended:
            raise FailedPrecondition(
                ErrorReason.SESSION_ENDED, "the session has ended; open a new one", metadata={"session": hello.session}
            )
        runner = self._make(caller, hello, claim, subject, tools, history)
        used, certain = _workspace(tools, history)
        self._p.ports.workers.restore(hello.session, claim.worker, used=used, certain=certain)
        self._p.ports.tasks.keep(runner.journal.run, name="journal")
        runner.apply(self._first_effects(runner, history))
        return runner

    async def still_owned(self, runner: Runner) -> bool:
        """Nobody else has claimed the session since. Without the broker nobody can, and who has is not known."""
        context = runner.session.context
        try:
            return await self._p.ownership.epoch(context.tenant, context.session) == context.epoch
        except Unavailable:
            return True

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

    async def _history(self, subject: str) -> History:
        history, after = History(), 0
        while True:
            page = await self._p.bus.read(subject, after_sequence=after, limit=_READ_PAGE)
            read_on(history, page)
            if len(page) < _READ_PAGE:
                return history
            after = page[-1].sequence or 0

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
        mode = self.mode(caller.tenant, policy, hello.mode, held_out)
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
            machine=SessionMachine(facts, policy.session, self._site_table(caller.tenant, claim.agent), self._replica),
            policy=policy,
            tools=tools,
            wanted=hello.mode,
            declared=tuple(hello.tools) or (tuple(opened.tools) if opened else ()),
            label=hello.label or (opened.label if opened else ""),
            held_out=held_out,
            recorded=history.recorded,
        )
        declare(session, hello)
        session.connections = _connections(session, history)
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

    def _first_effects(self, runner: Runner, history: History) -> list[Effect]:
        session, now = runner.session, self._p.ports.monotonic()
        declared = session.declared or tuple(sorted(session.tools))
        schemas = schemas_of(declared, session.tools) if self._p.settings.journal_tool_schemas else ()
        event = SessionOpened(
            declared, session.machine.mode, session.held_out, session.policy.label, session.label, schemas
        )
        if history.opened is None:
            return session.machine.open(event, now)
        unknown, lingering = _prepared(session, history.unknown()), _prepared(session, history.lingering())
        for key, call in _prepared(session, history.under_way()).items():
            if isinstance(call.prepared, PreparedCall) and call.prepared.writes and call.prepared.repeatable:
                lingering[key] = call
        return session.machine.restore(
            event,
            number=history.number,
            last_turn=history.last_turn,
            closed=history.closed,
            unknown=unknown,
            lingering=lingering,
            journalled=history.asked.keys(),
            user_texts=history.user_texts,
            now=now,
        )

    def mode(self, tenant: str, policy: Policy, wanted: int, held_out: bool) -> Mode:
        """The mode of a session: what the policy says, lowered by the client, the hold-out and the switch."""
        if held_out or self._p.switch.off(tenant) is not None:
            return Mode.OFF
        if not wanted:
            return policy.mode
        asked = mode_of(wanted)  # type: ignore[arg-type]
        return min(asked, policy.mode, key=lambda mode: mode.rank)

    def sites(self) -> tuple[int, int]:
        """How many call sites are on, and how many off."""
        off = sum(table.off for table in self._sites.values())
        return sum(len(table.table) for table in self._sites.values()) - off, off

    def _site_table(self, tenant: str, agent: str) -> Sites:
        key = (tenant, agent)
        table = self._sites.pop(key, None) or Sites()
        self._sites[key] = table
        if len(self._sites) > _SITE_TABLES:
            self._sites.popitem(last=False)
        return table


def _prepared(
    session: Session, calls: Mapping[tuple[int, int], event_pb2.AskedCall]
) -> dict[tuple[int, int], AskedCall]:
    """Calls of the journal, as they were asked for."""
    return {key: session.asked(call) for key, call in calls.items()}


def _connections(session: Session, history: History) -> set[str]:
    """Servers that keep state for the session: those that an earlier owner has called, or may have."""
    called = {one.tool for one in history.closed.values() if one.answer.result is not None}
    called |= {history.asked[key].action.tool for key in history.intents if key in history.asked}
    return {tool.server for name in called if (tool := session.tools.get(name)) is not None and tool.stateful}


def _workspace(tools: Mapping[str, Tool], history: History) -> tuple[bool, bool]:
    """Whether an earlier owner may have used the session's workspace, and whether it certainly has."""
    inside = {name for name, tool in tools.items() if tool.uses_workspace}
    done = [one for one in history.closed.values() if one.answer.status is CallStatus.OK and one.tool in inside]
    return any(call.action.tool in inside for call in history.asked.values()), bool(done)


def check_hello(hello: session_pb2.Hello) -> None:
    """Refuses a Hello that is not well formed.

    Raises:
        InvalidArgument: the session id is no UUID, or a name is missing or too long.
    """
    _check_uuid("session", hello.session)
    if not 0 < len(hello.agent) <= limits.NAME_CHARS:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID, f"`agent` must have 1 to {limits.NAME_CHARS} characters (NAME_CHARS)"
        )
    names = [*hello.tools, *(tool.name for tool in hello.client_tools), hello.label or "-"]
    if len(names) > limits.CALLS_PER_MESSAGE or any(not 0 < len(name) <= limits.NAME_CHARS for name in names):
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"at most {limits.CALLS_PER_MESSAGE} tools (CALLS_PER_MESSAGE), each name and the label with 1 to "
            f"{limits.NAME_CHARS} characters (NAME_CHARS)",
        )
    for tool in hello.client_tools:
        _check_schema(tool)


def _check_schema(tool: session_pb2.ClientTool) -> None:
    try:
        if tool.input_schema:
            parse_schema(tool.input_schema.encode())
    except (SchemaError, CanonicalError) as error:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"the schema of the client's tool {tool.name!r} is none of at most {limits.SCHEMA_BYTES} bytes "
            f"(SCHEMA_BYTES): {error}",
            metadata={"field": "client_tools", "tool": tool.name},
        ) from error


def check_event_id(event_id: str) -> str:
    """The id of an event in its one form.

    Raises:
        InvalidArgument: it is no UUID, so nobody could tell the event from another one.
    """
    return str(_check_uuid("id", event_id))


def _check_uuid(name: str, text: str) -> uuid.UUID:
    # Any version passes: nothing here depends on the client's clock, which is in the version that clients use.
    try:
        return uuid.UUID(text)
    except ValueError:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"`{name}` must be a UUID (version 7), made by the client",
            metadata={"field": name},
        ) from None


def declare(session: Session, hello: session_pb2.Hello) -> None:
    """Adds the tools that live in the client. They cannot hide tools of the platform."""
    own = {one.name: client_tool_of(one) for one in hello.client_tools}
    session.tools = own | dict(session.tools)
    if session.declared and own:
        session.declared = tuple(dict.fromkeys((*session.declared, *own)))


def _held_out(session: str, policy: Policy) -> bool:
    """Whether the hold-out takes a session: by hash, so that every replica and every restart agree."""
    digest = hashlib.blake2b(f"{policy.name}\0{session}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64 < policy.hold_out
