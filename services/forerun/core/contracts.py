"""Effect contracts: what the operator says that a tool does to the world.

A contract comes from policy, never from the tool server. What a server says about itself can only lower trust
(`lowered_by_hints`). A tool without a contract is a write to everything that is never executed ahead (`unknown`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from forerun.core import limits
from forerun.core.canonical import JsonValue
from forerun.core.race import Race, race_problems
from forerun.core.shell import CommandClass, ShellRules, classify


class Effect(StrEnum):
    """What a tool does to the world."""

    PURE = "pure"
    READ = "read"
    WRITE = "write"


class Scope(StrEnum):
    """Where the generations of a resource live: with one session, or shared by all sessions of a tenant."""

    SESSION = "session"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class ResourceTemplate:
    """A resource with placeholders for arguments.

    Attributes:
        text: `orders/{order_id}`, `files/{path:path}` (a normalised path), or `*` for everything.
        scope: Where its generations live.
    """

    text: str
    scope: Scope = Scope.SESSION


EVERYTHING = (ResourceTemplate("*", Scope.SESSION), ResourceTemplate("*", Scope.SHARED))
"""What a tool touches of which nothing is known."""


def _no_conditions() -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Contract:
    """The effect contract of one tool. Every default is the cautious one.

    Attributes:
        tool: Name of the tool.
        server: The tool server or worker that offers it.
        effect: Pure, read or write.
        known: False when no policy names the tool.
        consuming: A read that changes something (a queue, a one-time token).
        metered: Has a price or a quota of its own.
        idempotent: A write that, done twice with the same arguments, is as if done once.
        staged: All effects of the write stay in the session's workspace.
        transactional: The write is held open until commit.
        open_world: The call may reach destinations outside of the platform.
        compensated_by: The tool that undoes this write.
        reads: What it reads. A read that names nothing reads everything.
        writes: What it writes. A write that names nothing writes everything.
        max_staleness_seconds: Age limit of a prefetched result; None is no limit of its own, 0 means time-dependent.
        timeout_seconds: Longest execution.
        concurrency: Executions of this tool at the same time.
        output_cap_bytes: The tool's own cap on output, the same with and without the platform; None is none.
        insensitive_fields: Argument fields that do not matter for identity.
        nfc_fields: Argument fields that are compared in Unicode form NFC.
        speculate: The policy allows to execute this tool ahead.
        untrusted_output: Its results are other people's text.
        read_when: Argument -> values that turn the call into a read; every named argument must match.
        shell_argument: Argument that holds a command line, which decides the effect of the call.
        cost_money: Price of one call, in the policy's currency.
        race: When a slow call gets a second attempt; None never.
    """

    tool: str
    server: str
    effect: Effect
    known: bool = True
    consuming: bool = False
    metered: bool = False
    idempotent: bool = False
    staged: bool = False
    transactional: bool = False
    open_world: bool = False
    compensated_by: str | None = None
    reads: tuple[ResourceTemplate, ...] = ()
    writes: tuple[ResourceTemplate, ...] = ()
    max_staleness_seconds: float | None = None
    timeout_seconds: float = limits.DEADLINE_DEFAULT_SECONDS
    concurrency: int = limits.CALLS_IN_FLIGHT_PER_MESSAGE
    output_cap_bytes: int | None = None
    insensitive_fields: frozenset[str] = frozenset()
    nfc_fields: frozenset[str] = frozenset()
    speculate: bool = False
    untrusted_output: bool = True
    read_when: Mapping[str, tuple[str, ...]] = field(default_factory=_no_conditions, hash=False)
    shell_argument: str | None = None
    cost_money: float = 0.0
    race: Race | None = None


class Reason(StrEnum):
    """Why a contract may or may not be executed ahead."""

    PURE = "pure"
    READ = "read"
    METERED = "metered"
    STAGED = "staged"
    TRANSACTIONAL = "transactional"
    COMPENSATED = "compensated"
    UNKNOWN_TOOL = "unknown_tool"
    NOT_ALLOWED = "not_allowed"
    CONSUMING = "consuming"
    PLAIN_WRITE = "plain_write"
    TIME_DEPENDENT = "time_dependent"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a tool may be executed ahead, and the rule that decided it.

    `Reason.METERED` with `allowed` means: only within the tool's own purse.
    """

    allowed: bool
    reason: Reason


def unknown(tool: str, server: str) -> Contract:
    """The contract of a tool that no policy names: a write to everything, alone, never ahead of time."""
    return Contract(tool, server, Effect.WRITE, known=False, open_world=True, writes=EVERYTHING)


def effective(contract: Contract, arguments: JsonValue, shell: ShellRules | None) -> Contract:
    """The contract of this very call.

    `read_when` and `shell_argument` let an argument decide: a command that only reads turns a write into a read of
    the same resources; a command that reaches out of the workspace loses everything that makes a write repeatable.

    Args:
        contract: The contract of the tool.
        arguments: The parsed arguments, as sent.
        shell: The policy's rules for command lines; None means that no command line is known to be read-only.
    """
    if contract.effect is not Effect.WRITE or not isinstance(arguments, dict):
        return contract
    if contract.read_when and all(arguments.get(name) in values for name, values in contract.read_when.items()):
        return _as_read(contract, volatile=False)
    if contract.shell_argument is None:
        return contract
    command = arguments.get(contract.shell_argument)
    if shell is None or not isinstance(command, str):
        return contract
    verdict = classify(command, shell)
    if verdict.kind is CommandClass.READ_ONLY:
        return _as_read(contract, volatile=verdict.volatile)
    if verdict.kind is CommandClass.OUTWARD:
        return _as_outward(contract)
    return contract


def _as_read(contract: Contract, *, volatile: bool) -> Contract:
    reads = tuple(dict.fromkeys(contract.reads + contract.writes))
    return replace(
        contract,
        effect=Effect.READ,
        reads=reads,
        writes=(),
        staged=False,
        transactional=False,
        idempotent=False,
        compensated_by=None,
        max_staleness_seconds=0.0 if volatile else contract.max_staleness_seconds,
    )


def _as_outward(contract: Contract) -> Contract:
    """A command that leaves the workspace can change anything there is, and nothing can undo it."""
    scopes = dict.fromkeys(template.scope for template in contract.writes) or {Scope.SESSION: None}
    everything = tuple(ResourceTemplate("*", scope) for scope in scopes)
    return replace(
        contract,
        writes=everything,
        staged=False,
        transactional=False,
        idempotent=False,
        compensated_by=None,
        open_world=True,
    )


def read_templates(contract: Contract) -> tuple[ResourceTemplate, ...]:
    """What a call reads. A read that declares nothing reads everything; something pure reads nothing."""
    if contract.effect is Effect.PURE:
        return ()
    if contract.effect is Effect.READ and not contract.reads:
        return EVERYTHING
    return contract.reads


def write_templates(contract: Contract) -> tuple[ResourceTemplate, ...]:
    """What a call writes. A write that declares nothing writes everything; a consuming read writes what it reads."""
    if contract.effect is Effect.WRITE:
        return contract.writes or EVERYTHING
    if contract.effect is Effect.READ and contract.consuming:
        return contract.writes or read_templates(contract)
    return ()


def repeatable(contract: Contract) -> bool:
    """Whether a call may be executed again when its outcome is not known."""
    if contract.consuming:
        return False
    return contract.effect is not Effect.WRITE or contract.idempotent or contract.staged


def shareable(contract: Contract) -> bool:
    """Whether identical calls of one message run once and share the outcome."""
    if contract.consuming:
        return False
    return contract.effect is not Effect.WRITE or contract.idempotent


def is_barrier(contract: Contract) -> bool:
    """Whether a call runs alone among the calls of its message: nothing is known about what it touches."""
    return not contract.known or (contract.effect is Effect.WRITE and not contract.writes)


def staleness_seconds(contract: Contract) -> float | None:
    """The age limit that holds for a result: the declared one, else 10 s for open-world tools, else none."""
    if contract.max_staleness_seconds is not None:
        return contract.max_staleness_seconds
    return limits.OPEN_WORLD_STALENESS_SECONDS if contract.open_world else None


def may_speculate(contract: Contract) -> Decision:
    """Decides whether a tool may be executed ahead of its call. Taint and admission are judged elsewhere."""
    if not contract.known:
        return Decision(False, Reason.UNKNOWN_TOOL)
    if contract.consuming:
        return Decision(False, Reason.CONSUMING)
    if contract.effect is Effect.WRITE:
        reason = _write_reason(contract)
        if reason is Reason.PLAIN_WRITE:
            return Decision(False, reason)
    else:
        reason = Reason.PURE if contract.effect is Effect.PURE else Reason.READ
    if not contract.speculate:
        return Decision(False, Reason.NOT_ALLOWED)
    if contract.max_staleness_seconds == 0.0:
        return Decision(False, Reason.TIME_DEPENDENT)
    if contract.metered:
        return Decision(True, Reason.METERED)
    return Decision(True, reason)


def _write_reason(contract: Contract) -> Reason:
    if contract.staged:
        return Reason.STAGED
    if contract.transactional:
        return Reason.TRANSACTIONAL
    if contract.compensated_by:
        return Reason.COMPENSATED
    return Reason.PLAIN_WRITE


def in_place(contract: Contract, *, uses_workspace: bool) -> Contract:
    """The contract of a tool where it lives: the word `staged` holds only for a tool that works in the workspace.

    What works elsewhere (HTTP, MCP, Python, the client) has effects that no fork can hold back and nothing undoes.
    """
    return replace(contract, staged=False) if contract.staged and not uses_workspace else contract


def lowered_by_hints(
    contract: Contract,
    *,
    read_only_hint: bool | None = None,
    destructive_hint: bool | None = None,
    idempotent_hint: bool | None = None,
    open_world_hint: bool | None = None,
) -> Contract:
    """Applies a tool server's annotations (MCP). They can only take trust away; None means the hint is absent.

    A server that says that its tool writes is believed over an operator who thought that it reads.
    """
    lowered = contract
    denies_read = read_only_hint is False or (destructive_hint is True and read_only_hint is not True)
    if denies_read and lowered.effect is not Effect.WRITE:
        lowered = replace(lowered, effect=Effect.WRITE, writes=EVERYTHING, idempotent=False, speculate=False)
    if idempotent_hint is False and lowered.idempotent:
        lowered = replace(lowered, idempotent=False)
    if open_world_hint is True and not lowered.open_world:
        lowered = replace(lowered, open_world=True)
    return lowered


def problems(contract: Contract) -> list[str]:
    """Returns what contradicts itself in a contract, one sentence each, naming the field; empty when it is sound."""
    found: list[str] = []
    if not 0 < len(contract.tool) <= limits.NAME_CHARS:
        found.append(f"tool: must have 1 to {limits.NAME_CHARS} characters (NAME_CHARS)")
    if len(contract.server) > limits.NAME_CHARS:
        found.append(f"server: must have at most {limits.NAME_CHARS} characters (NAME_CHARS)")
    found.extend(_effect_problems(contract))
    found.extend(_number_problems(contract))
    for name, templates in (("reads", contract.reads), ("writes", contract.writes)):
        if len(templates) > limits.RESOURCE_TEMPLATES:
            found.append(f"{name}: {len(templates)} templates, above RESOURCE_TEMPLATES ({limits.RESOURCE_TEMPLATES})")
    both = sorted(contract.insensitive_fields & contract.nfc_fields)
    if both:
        found.append(f"nfc_fields: {', '.join(both)} is also in insensitive_fields")
    return found


def _effect_problems(contract: Contract) -> list[str]:
    found: list[str] = []
    if contract.effect is Effect.PURE and (contract.reads or contract.writes):
        found.append("effect: something pure reads and writes nothing; call it a read or a write")
    if contract.effect is Effect.PURE and contract.open_world:
        found.append("open_world: something pure connects to nothing")
    if contract.effect is Effect.READ and contract.writes and not contract.consuming:
        found.append("writes: a read that writes must be consuming")
    if contract.consuming and contract.effect is not Effect.READ:
        found.append("consuming: only a read can be consuming")
    if contract.effect is not Effect.WRITE:
        for name in ("staged", "transactional", "idempotent", "compensated_by", "read_when", "shell_argument"):
            if getattr(contract, name):
                found.append(f"{name}: only a write can have it")
    if contract.staged and contract.open_world and contract.shell_argument is None:
        found.append("staged: a write that connects elsewhere does not stay in the workspace")
    if contract.speculate and contract.consuming:
        found.append("speculate: a consuming read is never executed ahead")
    if contract.speculate and not contract.known:
        found.append("speculate: an unknown tool is never executed ahead")
    may_only_read = bool(contract.read_when) or contract.shell_argument is not None
    plain_write = contract.effect is Effect.WRITE and _write_reason(contract) is Reason.PLAIN_WRITE
    if contract.speculate and plain_write and not may_only_read:
        found.append("speculate: a write that is executed ahead must be staged, transactional or compensated")
    if contract.compensated_by == contract.tool:
        found.append("compensated_by: a tool cannot undo itself")
    return found


def _number_problems(contract: Contract) -> list[str]:
    found: list[str] = []
    staleness = contract.max_staleness_seconds
    if staleness is not None and not 0.0 <= staleness < float("inf"):
        found.append("max_staleness_seconds: must be a finite number that is not negative")
    if not 0.0 < contract.timeout_seconds <= limits.DEADLINE_MAX_SECONDS:
        found.append(
            f"timeout_seconds: must be above 0 and at most {limits.DEADLINE_MAX_SECONDS:g} (DEADLINE_MAX_SECONDS)"
        )
    if contract.race is not None:
        found += race_problems(contract.race)
        if contract.effect is Effect.WRITE or contract.consuming:
            found.append("race: only a read gets a second attempt")
    if contract.concurrency < 1:
        found.append("concurrency: must be at least 1")
    cap = contract.output_cap_bytes
    if cap is not None and not 0 < cap <= limits.RESULT_BYTES:
        found.append(f"output_cap_bytes: must be 1 to {limits.RESULT_BYTES} (RESULT_BYTES)")
    if not 0.0 <= contract.cost_money < float("inf"):
        found.append("cost_money: must be a finite number that is not negative")
    return found
