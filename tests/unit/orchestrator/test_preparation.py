"""What is known of a tool changes what its contract may promise."""

from __future__ import annotations

from dataclasses import replace

from forerun.core.contracts import Reason, may_speculate
from forerun.core.session import PreparedCall
from forerun.orchestrator.preparation import Preparation, Tool
from forerun.runtime.policy import policy_of
from forerun.v1 import policy_pb2

TOOL = Tool("t", "server", "1", None, "")
_WRITE = policy_pb2.EffectContract(
    tool="t", effect=policy_pb2.EFFECT_WRITE, staged=True, speculate=True, writes=[policy_pb2.Resource(template="x")]
)


def _prepared(tool: Tool, contract: policy_pb2.EffectContract) -> PreparedCall:
    policy = policy_of(policy_pb2.SpeculationPolicy(name="p", tools=[contract]))
    call = Preparation("tenant", "principal", "scope", "session").prepare(tool, tool.name, b"{}", policy)
    assert isinstance(call, PreparedCall)
    return call


def test_only_what_works_in_the_workspace_is_staged() -> None:
    inside, outside = (_prepared(replace(TOOL, uses_workspace=uses), _WRITE) for uses in (True, False))
    assert (inside.repeatable, inside.forks, inside.speculable) == (True, True, True)
    assert (outside.repeatable, outside.forks, outside.speculable) == (False, False, False)
    assert may_speculate(outside.contract).reason is Reason.PLAIN_WRITE
    client = _prepared(replace(TOOL, in_client=True), _WRITE)
    assert not client.repeatable


def test_what_keeps_state_with_its_connection_is_not_run_ahead_and_not_audited() -> None:
    read = policy_pb2.EffectContract(tool="t", effect=policy_pb2.EFFECT_READ, speculate=True)
    free, bound = (_prepared(replace(TOOL, stateful=stateful), read) for stateful in (False, True))
    assert (free.connection, free.speculable, free.auditable) == ("", True, True)
    assert (bound.connection, bound.speculable, bound.auditable, bound.rememberable) == ("server", False, False, True)
