"""An audit is asked for with all that it takes to execute the action again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from forerun.core.outcomes import Mode
from forerun.core.session import SessionFacts, SessionMachine
from forerun.orchestrator.audits import audit_request
from forerun.orchestrator.preparation import tool_of
from forerun.orchestrator.records import EventContext
from forerun.orchestrator.session import Session
from forerun.runtime.auth import Caller
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.policy import policies_of, read_policy_file
from forerun.v1 import ledger_pb2, sandbox_pb2
from tests.unit.session.driver import prepared


def session_of(tmp_path: Path) -> Session:
    file = tmp_path / "policy.yaml"
    file.write_text("policies: [{name: p, mode: MODE_EXACT, tools: [{tool: look, effect: EFFECT_READ}]}]")
    policy = policies_of(read_policy_file(file)).choose("t", "a")
    caller, clock = Caller("t", "p", "c"), SystemClock()
    facts = SessionFacts(
        tenant="t", principal="p", credential_scope="c", agent="a", session="S", epoch=1, mode=Mode.EXACT
    )
    return Session(
        caller=caller,
        context=EventContext("t", "p", "c", "a", "S", 1, clock, SeededIds(1, clock)),
        machine=SessionMachine(facts, policy.session),
        policy=policy,
        tools={"look": tool_of(sandbox_pb2.ToolDescription(name="look", server="s"))},
        declared=(),
        wanted=0,
        label="label",
        held_out=False,
    )


def test_an_audit_in_a_workspace_names_the_worker_that_has_it(tmp_path: Path) -> None:
    session, line = session_of(tmp_path), ledger_pb2.LedgerLine(id="line")
    in_workspace = replace(prepared("look", id=1), uses_workspace=True)
    request = audit_request(session, in_workspace, line, worker="worker-7", partitions=16)
    assert (request.workspace, request.worker) == ("S", "worker-7")
    assert (request.credential_scope, request.session_label, request.line.id) == ("c", "label", "line")
    assert [contract.tool for contract in request.contracts] == ["look"]
    elsewhere = replace(in_workspace, uses_workspace=False)
    request = audit_request(session, elsewhere, line, worker="worker-7", partitions=16)
    assert (request.workspace, request.worker) == ("", "")
