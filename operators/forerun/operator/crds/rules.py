"""What the custom resources say beyond the contract's messages: bounds, defaults, required fields, and CEL rules.

The API server refuses with them what could never be used, at the moment somebody writes it; everything that needs more
than one look at one object (see `publication.py`) is told by a condition instead. Fields are named as in the protos.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.core import limits

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule in the Common Expression Language, and what its breach is called."""

    rule: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a field or a message has to fulfil.

    Attributes:
        minimum: Smallest number.
        maximum: Largest number.
        above: The number must be larger than `minimum`, not equal.
        below: The number must be smaller than `maximum`, not equal.
        least_length: Characters of a string, at least.
        most_length: Characters of a string, at most.
        pattern: Regular expression of a string.
        choices: The only strings.
        most_items: Entries of a list or map, at most.
        keys: Fields that tell the entries of a list apart; then no two may agree in them.
        default: What an absent field becomes.
        required: Fields of a message that must be there.
        cel: Rules of a message or field.
    """

    minimum: float | None = None
    maximum: float | None = None
    above: bool = False
    below: bool = False
    least_length: int | None = None
    most_length: int | None = None
    pattern: str | None = None
    choices: tuple[str, ...] = ()
    most_items: int | None = None
    keys: tuple[str, ...] = ()
    default: Scalar | Mapping[str, Scalar] | None = None
    required: tuple[str, ...] = ()
    cel: tuple[Cel, ...] = ()


NAMED_ELSEWHERE: Final = frozenset({"SpeculationPolicy.name", "SpeculationPolicy.version", "ToolServer.name"})
"""Fields that the object's metadata say: its name, and a version that the operator makes of what is in it."""

ANY_STRING: Final = Rule(most_length=4_096)
ANY_NUMBER: Final = Rule(minimum=0, maximum=1_000_000_000)
ANY_LIST: Final = Rule(most_items=64)
"""What holds for a field without a row: everything has a bound, also what is added to the contract later."""

_SHARE: Final = Rule(minimum=0, maximum=1)
_NAME: Final = Rule(least_length=1, most_length=limits.NAME_CHARS)
_NAMES: Final = Rule(most_items=limits.RESOURCE_TEMPLATES * 2, most_length=limits.NAME_CHARS)
_TEMPLATES: Final = Rule(most_items=limits.RESOURCE_TEMPLATES)
_POOL_REPLICAS: Final = 1_000

_ONE_ENDPOINT: Final = "(has({0}.http) ? 1 : 0) + (has({0}.python) ? 1 : 0) + (has({0}.command) ? 1 : 0)"

MESSAGES: Final[Mapping[str, Rule]] = {
    "Resource": Rule(required=("template",)),
    "EffectContract": Rule(
        required=("tool", "effect"),
        cel=(
            Cel(
                "self.effect != 'EFFECT_PURE' || ((!has(self.reads) || self.reads.size() == 0)"
                " && (!has(self.writes) || self.writes.size() == 0))",
                "something pure reads and writes nothing; call it a read or a write",
            ),
            Cel(
                "!(has(self.consuming) && self.consuming) || self.effect == 'EFFECT_READ'",
                "only a read can be consuming",
            ),
            Cel(
                "!(has(self.speculate) && self.speculate && has(self.consuming) && self.consuming)",
                "a consuming read is never executed ahead",
            ),
            Cel(
                "!(has(self.staged) && self.staged) || self.effect == 'EFFECT_WRITE'",
                "only a write can be staged",
            ),
            Cel("!has(self.race) || self.effect != 'EFFECT_WRITE'", "only a read gets a second attempt"),
        ),
    ),
    "McpServer": Rule(
        cel=(
            Cel(
                "(has(self.url) && self.url != '') != (has(self.command) && self.command.size() > 0)",
                "an MCP server needs either a command or a url",
            ),
        )
    ),
    "HttpEndpoint": Rule(required=("url",)),
    "PythonEntryPoint": Rule(required=("entry_point",)),
    "Command": Rule(required=("argv",)),
    "ToolSpec": Rule(
        required=("name",),
        cel=(Cel(f"{_ONE_ENDPOINT.format('self')} <= 1", "a tool has one of http, python and command"),),
    ),
    "ToolServer": Rule(
        cel=(
            Cel(
                f"has(self.mcp) ? (!has(self.tools) || self.tools.all(t, {_ONE_ENDPOINT.format('t')} == 0))"
                f" : (has(self.tools) && self.tools.all(t, {_ONE_ENDPOINT.format('t')} == 1))",
                "give each tool one of http, python and command; tools of an MCP server have none of them",
            ),
        )
    ),
    "ScaleTarget": Rule(required=("name",)),
    "SpeculationPool": Rule(
        required=("target", "max_replicas"),
        cel=(Cel("self.minReplicas <= self.maxReplicas", "minReplicas must not be above maxReplicas"),),
    ),
    "AnswerPolicy": Rule(),
}
"""Rules of whole messages."""

FIELDS: Final[Mapping[str, Rule]] = {
    "SpeculationPolicy.mode": Rule(default="MODE_SHADOW"),
    "SpeculationPolicy.hold_out": _SHARE,
    "SpeculationPolicy.withhold": _SHARE,
    "SpeculationPolicy.audit_share": Rule(minimum=0, maximum=1, default=0.02),
    "SpeculationPolicy.alpha": _SHARE,
    "SpeculationPolicy.lambda_per_second": Rule(minimum=0, maximum=1_000_000, default=1),
    "SpeculationPolicy.slot_second_cost": Rule(minimum=0, maximum=1_000_000, default=1),
    "SpeculationPolicy.tools": Rule(most_items=512, keys=("tool",)),
    "SpeculationPolicy.unknown_writes": _TEMPLATES,
    "SpeculationPolicy.trusted_values": Rule(most_items=256, most_length=1_024),
    "SpeculationPolicy.tenants": Rule(most_items=1_024, most_length=limits.NAME_CHARS),
    "SpeculationPolicy.agents": Rule(most_items=1_024, most_length=limits.NAME_CHARS),
    "SpeculationPolicy.expiry_seconds": Rule(minimum=0, maximum=3_600, above=True, default=120),
    "SpeculationPolicy.minimum_evidence": Rule(minimum=0, maximum=1_000_000, default=5),
    "SpeculationPolicy.priority": Rule(minimum=-1_000, maximum=1_000),
    "Budget.concurrent_per_session": Rule(minimum=0, maximum=limits.SPECULATIONS_PER_SESSION, default=4),
    "Budget.concurrent": Rule(minimum=0, maximum=limits.SPECULATIONS_PER_REPLICA, default=64),
    "Budget.credits_per_call": Rule(minimum=0, maximum=100, default=0.3),
    "Budget.initial_credits": Rule(minimum=0, maximum=1_000, default=2),
    "Budget.money_per_session": Rule(minimum=0, maximum=1_000_000, default=0),
    "AnswerPolicy.max_candidates": Rule(minimum=1, maximum=limits.ANSWER_CANDIDATES),
    "AnswerPolicy.expected_gain": _SHARE,
    "Resource.template": Rule(least_length=1, most_length=limits.RESOURCE_KEY_CHARS),
    "EffectContract.tool": _NAME,
    "EffectContract.reads": _TEMPLATES,
    "EffectContract.writes": _TEMPLATES,
    "EffectContract.compensated_by": Rule(most_length=limits.NAME_CHARS),
    "EffectContract.max_staleness_seconds": Rule(minimum=0, maximum=10_000_000),
    "EffectContract.timeout_seconds": Rule(minimum=0, above=True, maximum=limits.DEADLINE_MAX_SECONDS),
    "EffectContract.concurrency": Rule(minimum=1, maximum=10_000),
    "EffectContract.output_cap_bytes": Rule(minimum=1, maximum=limits.RESULT_BYTES),
    "EffectContract.insensitive_fields": _NAMES,
    "EffectContract.nfc_fields": _NAMES,
    "EffectContract.cost_money": Rule(minimum=0, maximum=1_000_000),
    "EffectContract.shell_argument": Rule(most_length=limits.NAME_CHARS),
    "Race.after_quantile": Rule(minimum=0, maximum=1, above=True, below=True),
    "Race.most_extra": Rule(minimum=0, maximum=1, above=True),
    "StringValues.values": Rule(most_items=64, most_length=1_024),
    "HttpEndpoint.method": Rule(choices=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"), default="GET"),
    "HttpEndpoint.url": Rule(least_length=1, most_length=4_096, pattern="^https?://"),
    "HttpEndpoint.alternatives": Rule(most_items=8, most_length=4_096, pattern="^https?://"),
    "McpServer.command": Rule(most_items=128),
    "PythonEntryPoint.entry_point": Rule(pattern="^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$", most_length=512),
    "Command.argv": Rule(most_items=256),
    "Command.memory_bytes": Rule(minimum=1_048_576, maximum=1_099_511_627_776),
    "Command.pids": Rule(minimum=1, maximum=32_768),
    "Command.cpu_seconds": Rule(minimum=0, above=True, maximum=limits.DEADLINE_MAX_SECONDS),
    "Command.disk_bytes": Rule(minimum=0, maximum=1_099_511_627_776),
    "ToolSpec.name": _NAME,
    "ToolSpec.remote_name": Rule(most_length=limits.NAME_CHARS),
    "ToolSpec.input_schema": Rule(most_length=limits.SCHEMA_BYTES),
    "ToolServer.tools": Rule(most_items=256, keys=("name",)),
    "ToolServer.egress": Rule(most_items=256, most_length=253),
    "ToolServer.min_isolation": Rule(choices=("process", "bubblewrap", "pod", "gvisor")),
    "ScaleTarget.kind": Rule(choices=("Deployment", "StatefulSet"), default="Deployment"),
    "ScaleTarget.name": Rule(least_length=1, most_length=253),
    "SpeculationPool.replicas": Rule(minimum=0, maximum=_POOL_REPLICAS),
    "SpeculationPool.min_replicas": Rule(minimum=0, maximum=_POOL_REPLICAS, default=1),
    "SpeculationPool.max_replicas": Rule(minimum=1, maximum=_POOL_REPLICAS),
    "SpeculationPool.scaling": Rule(default={}),
    "SpeculationPool.speculation": Rule(default={}),
    "ScalingRules.slots_per_replica": Rule(minimum=1, maximum=1_024, default=1),
    "ScalingRules.target_utilisation_percent": Rule(minimum=10, maximum=100, default=80),
    "ScalingRules.scale_down_seconds": Rule(minimum=0, maximum=86_400, default=300),
    "ScalingRules.idle_seconds": Rule(minimum=0, maximum=86_400, default=600),
    "ScalingRules.stale_after_seconds": Rule(minimum=2, maximum=600, default=10),
    "SpeculativeShare.max_slots": Rule(minimum=0, maximum=100_000, default=64),
    "SpeculativeShare.max_share_percent": Rule(minimum=0, maximum=100, default=20),
    "SpeculativeShare.lambda_per_second": Rule(minimum=0, maximum=1_000_000, default=1),
    "SpeculativeShare.slot_second_cost": Rule(minimum=0, maximum=1_000_000, default=1),
    "TokenSpeculation.target_model": Rule(most_length=limits.NAME_CHARS),
    "TokenSpeculation.draft_model": Rule(most_length=limits.NAME_CHARS),
    "TokenSpeculation.max_depth": Rule(minimum=0, maximum=64, default=8),
}
"""Rules of single fields, by `Message.field`."""
