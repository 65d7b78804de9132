"""Effect contracts of recorded runs: from a hand-made JSON file to the platform's policy and tool server messages.

The JSON says for each tool its `effect` (pure, read, staged, write), its one `resource`, whether it is `open_world`,
and for tools whose argument decides, `read_when` or `shell_argument`. Resources are private to a session. Tools that
are not listed write everything. The recorded tools live behind HTTP, where nothing can be forked: of the staged ones
only the calls that just read are executed ahead, the others run when the agent asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from forerun.core import limits
from forerun.core.shell import DEFAULT_RULES, ShellRules
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.v1 import common_pb2, policy_pb2

SERVER = "recorded"
EVERYTHING = "*"

# Speed at any fair price: an execution ahead is launched where it pays on expectation. A second of an agent that waits
# for somebody else's tool is worth ten of a connection to it; the budget bounds the waste.
ALPHA = 1.0
LAMBDA_PER_SECOND = 10.0

# A recorded call that hangs for a time limit of its own must still end as it was recorded.
_TIMEOUT_SECONDS = limits.DEADLINE_MAX_SECONDS
_EFFECTS = frozenset({"pure", "read", "staged", "write"})


@dataclass(frozen=True, slots=True)
class ToolRule:
    """What the file says of one tool.

    Attributes:
        effect: `pure`, `read`, `staged` or `write`.
        resource: The one resource that it touches, or `*`; empty for pure tools.
        open_world: It may send its arguments to places that others control.
        read_when: Argument to the value with which a staged call only reads.
        shell_argument: The argument that holds a command line.
    """

    effect: str
    resource: str
    open_world: bool = False
    read_when: Mapping[str, str] | None = None
    shell_argument: str = ""


UNLISTED = ToolRule("write", EVERYTHING)
"""A tool of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for one trace file.

    Attributes:
        name: Name of the policy, which is also the agent's.
        tools: By name of the tool.
        default: For tools that are not listed.
        shell: What command lines do.
    """

    name: str
    tools: Mapping[str, ToolRule]
    default: ToolRule = UNLISTED
    shell: ShellRules = DEFAULT_RULES

    def of(self, tool: str) -> ToolRule:
        """The rule of a tool."""
        return self.tools.get(tool, self.default)


def load(path: Path, name: str) -> Rules:
    """Reads a policy file.

    Raises:
        InvalidArgument: The file is no such policy; the message names file and place.
        OSError: The file cannot be read.
    """
    try:
        record = json.loads(path.read_bytes())
        tools = {str(tool): _rule(rule) for tool, rule in dict(record["tools"]).items()}
        return Rules(name, tools, _rule(record.get("default", {"effect": "write", "resource": EVERYTHING})))
    except (KeyError, TypeError, ValueError) as error:
        message = f"{path} is not a replay policy: {error!r}"
        raise InvalidArgument(ErrorReason.POLICY_INVALID, message, metadata={"file": str(path)}) from error


def _rule(record: Mapping[str, object]) -> ToolRule:
    effect = str(record["effect"])
    if effect not in _EFFECTS:
        raise ValueError(f"effect {effect!r} is none of {', '.join(sorted(_EFFECTS))}")
    read_when = record.get("read_when")
    return ToolRule(
        effect=effect,
        resource="" if effect == "pure" else str(record.get("resource", EVERYTHING)),
        open_world=bool(record.get("open_world", False)),
        read_when={str(k): str(v) for k, v in read_when.items()} if isinstance(read_when, dict) else None,
        shell_argument=str(record.get("shell_argument", "")),
    )


def contract(tool: str, rule: ToolRule) -> policy_pb2.EffectContract:
    """The effect contract of one tool."""
    resource = policy_pb2.Resource(template=rule.resource, scope=policy_pb2.RESOURCE_SCOPE_SESSION)
    result = policy_pb2.EffectContract(tool=tool, open_world=rule.open_world, timeout_seconds=_TIMEOUT_SECONDS)
    if rule.effect == "pure":
        result.effect, result.speculate = policy_pb2.EFFECT_PURE, True
    elif rule.effect == "read":
        result.effect, result.speculate = policy_pb2.EFFECT_READ, True
        result.reads.append(resource)
    else:
        result.effect = policy_pb2.EFFECT_WRITE
        result.writes.append(resource)
        for argument, value in (rule.read_when or {}).items():
            result.read_when[argument].values.append(value)
        result.shell_argument = rule.shell_argument
        result.speculate = bool(rule.read_when or rule.shell_argument)
    return result


def policy(
    rules: Rules, tools: Iterable[str], *, max_amplification: float | None = None
) -> policy_pb2.SpeculationPolicy:
    """The policy of one trace file, for its agent: exact, without hold-out, with a contract for each of `tools`.

    Args:
        rules: The file's rules.
        tools: Names of all tools that the runs call.
        max_amplification: Executions per authoritative call that must not be passed. A discarded execution then needs
            a credit that earlier calls have earned. None: the platform's own budget.
    """
    everything = policy_pb2.Resource(template=EVERYTHING, scope=policy_pb2.RESOURCE_SCOPE_SESSION)
    result = policy_pb2.SpeculationPolicy(
        name=rules.name,
        mode=common_pb2.MODE_EXACT,
        hold_out=0.0,
        withhold=0.0,
        audit_share=0.0,
        alpha=ALPHA,
        lambda_per_second=LAMBDA_PER_SECOND,
        agents=[rules.name],
        unknown_writes=[everything],
        tools=[contract(tool, rules.of(tool)) for tool in sorted(set(tools))],
    )
    if max_amplification is not None:
        result.budget.credits_per_call = max_amplification - 1.0
        result.budget.initial_credits = 0.0
    return result


def policy_file(
    policies: Iterable[policy_pb2.SpeculationPolicy], tools: Iterable[str], *, address: str
) -> policy_pb2.PolicyFile:
    """Everything that local mode needs: the policies, and one server with all recorded tools.

    Args:
        policies: One for each trace file.
        tools: Names of all tools.
        address: Where the tool server listens, such as `http://127.0.0.1:8080`.
    """
    url = f"{address}/{{session}}/{{tool}}"
    server = policy_pb2.ToolServer(
        name=SERVER,
        tools=[
            policy_pb2.ToolSpec(name=tool, http=policy_pb2.HttpEndpoint(method="POST", url=url, json_body=True))
            for tool in sorted(set(tools))
        ],
    )
    return policy_pb2.PolicyFile(policies=policies, servers=[server])
