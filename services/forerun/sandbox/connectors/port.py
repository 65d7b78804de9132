"""The port of all connectors: an invocation goes in, an outcome or a typed fault comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from forerun.core.canonical import CanonicalError, JsonValue, parse_strict
from forerun.runtime.errors import ErrorReason
from forerun.sandbox.demand import Demand
from forerun.sandbox.owner import Owner
from forerun.sandbox.tools import Tool

Sink = Callable[[bytes], None]
"""Takes the next bytes of the final value, in order."""


class Ended(StrEnum):
    """How a call ended, as `CallStatus` on the wire."""

    OK = "ok"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    OUTCOME_UNKNOWN = "outcome_unknown"


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a tool.

    Attributes:
        tool: What to call.
        raw: The arguments exactly as they were sent.
        arguments: The same, parsed and valid.
        tenant: On whose behalf, as the three fields of `Caller`.
        principal: See `tenant`.
        credential_scope: See `tenant`.
        session: The session's id.
        session_label: The session as tools are told of it.
        demand: Whether an agent waits for it, or Forerun runs ahead. Never told to the tool.
        timeout_seconds: What remains for the call.
        idempotency_key: The same for every try of the logical call.
        output_cap_bytes: Cap of the tool's own contract.
        fork: Fork of the workspace to work in; empty reads the workspace.
        provider: Which of the tool's equivalent providers.
        expects_state: An earlier call of the session has used the connection that keeps state for it.
    """

    tool: Tool
    raw: bytes
    arguments: Mapping[str, JsonValue]
    tenant: str
    principal: str
    credential_scope: str
    session: str
    session_label: str
    demand: Demand
    timeout_seconds: float
    idempotency_key: str = ""
    output_cap_bytes: int | None = None
    fork: str = ""
    provider: int = 0
    expects_state: bool = False

    @property
    def speculative(self) -> bool:
        """It runs ahead of time, so far."""
        return not self.demand.asked_for

    @property
    def owner(self) -> Owner:
        """Whose workspace and connections are used."""
        return Owner(self.tenant, self.session)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer of a tool.

    Attributes:
        content: Its bytes.
        media_type: What they are; parameters carry what the bytes do not say (`status`, `exit`, `nulled`).
        tool_error: The tool itself reports a failure.
        cpu_seconds: CPU time, where known.
        capped: `content` already respects the output cap.
        may_continue: It says nothing of the end: what was asked for may still take effect.
    """

    content: bytes
    media_type: str
    tool_error: bool = False
    cpu_seconds: float | None = None
    capped: bool = False
    may_continue: bool = False


class ToolFault(Exception):
    """The call ended without an answer of the tool.

    Attributes:
        ended: How; never OK.
        reason: Why.
        message: For people; holds no content.
        not_started: It certainly never reached the tool.
    """

    def __init__(
        self, ended: Ended, reason: ErrorReason, message: str, *, metadata: Mapping[str, str] | None = None,
        not_started: bool = False, retry_after_seconds: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.ended = ended
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.not_started = not_started
        self.retry_after_seconds = retry_after_seconds


class Connector(Protocol):
    """Calls tools of one kind."""

    async def call(self, invocation: Invocation, sink: Sink) -> Result:
        """Calls a tool. Cancelling stops the tool.

        Args:
            invocation: What to call.
            sink: Takes the answer as it comes, where it is final in that form; the whole is in the result as well.

        Raises:
            ToolFault: There is no answer.
        """
        ...

    def ends_with_call(self, invocation: Invocation) -> bool:
        """Whether nothing that a tool was told to do can still happen once `call` has ended without its answer."""
        ...

    async def close_session(self, owner: Owner) -> None:
        """Ends what is kept for a session. Idempotent."""
        ...

    async def close(self) -> None:
        """Ends everything."""
        ...


def rejected(reason: ErrorReason, message: str, **metadata: str) -> ToolFault:
    """A call that was refused before anything ran."""
    return ToolFault(Ended.REJECTED, reason, message, metadata=metadata, not_started=True)


def text_media_type(content: bytes) -> str:
    """What textual bytes are: JSON where strict JSON, else plain text, else just bytes."""
    try:
        parse_strict(content)
    except CanonicalError:
        try:
            content.decode()
        except UnicodeDecodeError:
            return "application/octet-stream"
        return "text/plain; charset=utf-8"
    return "application/json"


def cut(content: bytes, cap_bytes: int) -> bytes:
    """Head and tail of a text longer than its cap, with the number of bytes left out. Never cuts inside a character."""
    head, tail = content[: cap_bytes // 2], content[len(content) - (cap_bytes - cap_bytes // 2) :]
    head_text = head.decode("utf-8", "ignore").encode()
    while tail and tail[0] & 0xC0 == 0x80:
        tail = tail[1:]
    omitted = len(content) - len(head_text) - len(tail)
    return head_text + f"\n[... {omitted} bytes omitted ...]\n".encode() + tail
