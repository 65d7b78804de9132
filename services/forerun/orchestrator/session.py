"""One open session, as a replica holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.core.session import Failure, PreparedCall, SessionMachine
from forerun.orchestrator.preparation import Preparation, Tool
from forerun.orchestrator.records import EventContext
from forerun.runtime.auth import Caller
from forerun.runtime.policy import Policy


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
