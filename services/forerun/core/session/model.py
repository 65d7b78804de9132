"""What the session machine works on: prepared calls, results, answers, and the policy of one session."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.core.candidates import Candidate
from forerun.core.canonical import JsonValue
from forerun.core.contracts import Contract, Effect, may_speculate, repeatable, shareable
from forerun.core.governor import Limits, Prices
from forerun.core.identity import Identity
from forerun.core.outcomes import CallStatus, Mode, Served
from forerun.core.resources import Footprint
from forerun.core.schema import ToolSchema

CallId = tuple[int, int]
"""(turn, index) of a call within its session."""


def fork_of(call: CallId) -> str:
    """Id of the fork of a call that works in the workspace.

    The same for every try, also of another owner, so that a worker knows a merge that it has done already.
    """
    return f"call-{call[0]}-{call[1]}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call did not end as OK; see the contract's message of the same name.

    Attributes:
        reason: Stable reason.
        message: What is wrong and what to do.
        metadata: Named details.
        retry_after_seconds: When asking again makes sense, or None.
    """

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call whose arguments parsed, with everything that decisions need to know about it.

    Attributes:
        tool: Name of the tool.
        version: Its version.
        arguments: The exact bytes that are executed.
        value: The same, parsed.
        contract: The contract of this very call.
        identity: By which it is compared.
        digest: Short name of the identity.
        private: Resource keys of the session.
        shared: Resource keys that other sessions see.
        schema: The tool's schema, where it has one.
        uses_workspace: It works in the session's workspace.
        in_client: It is executed by the client.
        connection: The server that keeps state with the session's connection, so that no other connection gives the
            true result; empty where none does.
    """

    tool: str
    version: str
    arguments: bytes
    value: JsonValue
    contract: Contract
    identity: Identity
    digest: str
    private: Footprint
    shared: Footprint
    schema: ToolSchema | None = None
    uses_workspace: bool = False
    in_client: bool = False
    connection: str = ""

    @property
    def writes(self) -> bool:
        """It changes something."""
        return bool(self.private.writes or self.shared.writes)

    @property
    def repeatable(self) -> bool:
        """It may be executed again when its outcome is not known."""
        return repeatable(self.contract)

    @property
    def shareable(self) -> bool:
        """Identical calls may share one outcome."""
        return shareable(self.contract)

    @property
    def rememberable(self) -> bool:
        """Its result may answer a later identical call."""
        return self.contract.effect is not Effect.WRITE and not self.contract.consuming

    @property
    def forks(self) -> bool:
        """It runs in a fork of the workspace, merged on success."""
        return self.contract.effect is Effect.WRITE and self.uses_workspace

    @property
    def speculable(self) -> bool:
        """The policy allows to run it ahead, and it can be."""
        return may_speculate(self.contract).allowed and not self.connection

    @property
    def auditable(self) -> bool:
        """Executed again elsewhere, it gives the same."""
        return self.rememberable and not self.connection


@dataclass(frozen=True, slots=True)
class AskedCall:
    """One call of a message.

    Attributes:
        index: Position in the message.
        provider_call_id: The provider's id; echoed only.
        tool: Name of the tool, also where the call was refused.
        arguments: The bytes as they were sent.
        prepared: The prepared call, or why it is refused.
    """

    index: int
    provider_call_id: str
    tool: str
    arguments: bytes
    prepared: PreparedCall | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """How an execution ended.

    Attributes:
        status: OK, TIMEOUT, CANCELLED, UNAVAILABLE or REJECTED.
        content: The observation, whole.
        media_type: Its type.
        tool_error: The tool itself reports a failure.
        digest: Digest of the content.
        failure: Set where status is not OK.
        seconds: Wall seconds in the slot.
        not_started: It certainly never reached the tool.
        preempted: It was stopped for authoritative work.
        no_slot: It was refused because no slot was free.
        may_continue: The tool was reached, and what it was told to do may still take effect.
        stored_bytes: Size of a content that is not here but in the object store, under its digest.
    """

    status: CallStatus
    content: bytes = b""
    media_type: str = ""
    tool_error: bool = False
    digest: str = ""
    failure: Failure | None = None
    seconds: float = 0.0
    not_started: bool = False
    preempted: bool = False
    no_slot: bool = False
    may_continue: bool = False
    stored_bytes: int = 0

    @property
    def state_lost(self) -> bool:
        """It was refused because the connection that kept the session's state with the tool's server is gone."""
        return self.failure is not None and self.failure.reason == "STATE_LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """What the agent gets for one call.

    Attributes:
        call: Which call.
        tool: Its tool.
        status: How it ended.
        result: The execution behind it, or None where nothing was executed.
        failure: Set where status is not OK.
        served: How it was answered.
        provider_call_id: Echo.
        waited_seconds: From ask to answer.
        may_continue: It writes, and may still take effect.
    """

    call: CallId
    tool: str
    status: CallStatus
    result: ExecutionResult | None
    failure: Failure | None
    served: Served
    provider_call_id: str = ""
    waited_seconds: float = 0.0
    may_continue: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate with its prepared call.

    Attributes:
        candidate: What the predictor said.
        prepared: The prepared call, or why there is none (unknown tool, bad arguments).
        draw: A uniform draw from [0, 1) for withholding; chance is injected.
    """

    candidate: Candidate
    prepared: PreparedCall | Failure
    draw: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPolicy:
    """What a policy says about one session.

    Attributes:
        name: Name of the policy.
        version: Its version; compared at commit.
        prices: Worth and cost.
        limits: Hard limits.
        withhold: Share of admitted candidates withheld at random.
        audit_share: Share of hits that are executed again afterwards.
        expiry_seconds: A result that nobody asked for is dropped after this.
        turns_kept: A result that nobody asked for is dropped after this many messages.
        trusted_values: Strings that may go to open destinations.
    """

    name: str
    version: str
    prices: Prices = field(default_factory=Prices)
    limits: Limits = field(default_factory=Limits)
    withhold: float = 0.0
    audit_share: float = 0.02
    expiry_seconds: float = 120.0
    turns_kept: int = 8
    trusted_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """What does not change during a session under one owner.

    Attributes:
        tenant: See `Identity`.
        principal: See `Identity`.
        credential_scope: See `Identity`.
        agent: Name of the agent.
        session: UUIDv7 of the session.
        epoch: The owner's epoch; part of execution ids.
        mode: Mode in force at the opening, after policy, override and hold-out.
    """

    tenant: str
    principal: str
    credential_scope: str
    agent: str
    session: str
    epoch: int
    mode: Mode
