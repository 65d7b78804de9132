"""One open session, as a replica holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.core import limits
from forerun.core.session import AskedCall, Failure, PreparedCall, SessionMachine
from forerun.orchestrator.preparation import Preparation, Tool
from forerun.orchestrator.records import EventContext
from forerun.runtime.auth import Caller
from forerun.runtime.policy import Policy
from forerun.v1 import event_pb2


class Recorded:
    """The latest events of a client, by id, so that one that is sent again is not recorded again."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, event_id: str, number: int) -> None:
        """An event was recorded."""
        self._numbers[event_id] = number
        if len(self._numbers) > limits.EVENT_IDS_PER_SESSION:
            del self._numbers[next(iter(self._numbers))]

    def number(self, event_id: str) -> int | None:
        """The number of an event, or None where it is new, or so old that it is not known any more."""
        return self._numbers.get(event_id)


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
        recorded: The client's events by their ids.
        connections: Servers that keep state with a connection which a call of the session has used.
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
    recorded: Recorded = field(default_factory=Recorded)
    connections: set[str] = field(default_factory=set)
    preparation: Preparation = field(init=False)

    def __post_init__(self) -> None:
        """Derives the preparation from the caller."""
        self.preparation = Preparation(
            tenant=self.caller.tenant,
            principal=self.caller.principal,
            credential_scope=self.caller.credential_scope,
            session=self.context.session,
        )

    def asked(self, message: event_pb2.AskedCall) -> AskedCall:
        """A call that was asked for, prepared."""
        action = message.action
        prepared = self.prepare(action.tool, action.arguments)
        return AskedCall(message.index, message.provider_call_id, action.tool, action.arguments, prepared)

    def prepare(self, tool: str, arguments: bytes) -> PreparedCall | Failure:
        """A prepared call, or why it is refused."""
        return self.preparation.prepare(self.tool(tool), tool, arguments, self.policy)

    def tool(self, name: str) -> Tool | None:
        """A tool that this session may call."""
        if self.declared and name not in self.declared:
            return None
        return self.tools.get(name)
