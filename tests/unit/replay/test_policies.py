"""Policies of recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.cli.replay.policies import ToolRule, contract, load, policy, policy_file
from forerun.core.contracts import problems
from forerun.runtime.errors import InvalidArgument
from forerun.runtime.policy import contract_of
from forerun.v1 import common_pb2, policy_pb2

RULES = {
    "tools": {
        "read": {"effect": "read", "resource": "orders", "open_world": True},
        "sum": {"effect": "pure"},
        "write": {"effect": "write", "resource": "orders"},
        "edit": {"effect": "staged", "resource": "ws"},
        "editor": {"effect": "staged", "resource": "ws", "read_when": {"command": "view"}},
    }
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(RULES))
    return path


def test_every_called_tool_gets_a_contract_and_unlisted_ones_write_everything(path: Path) -> None:
    made = policy(load(path, "runs"), ["read", "mystery"])
    by_name = {tool.tool: tool for tool in made.tools}
    assert by_name["read"].effect == policy_pb2.EFFECT_READ
    assert by_name["read"].speculate
    assert by_name["read"].open_world
    mystery = by_name["mystery"]
    assert mystery.effect == policy_pb2.EFFECT_WRITE
    assert not mystery.speculate
    assert [(w.template, w.scope) for w in mystery.writes] == [("*", policy_pb2.RESOURCE_SCOPE_SESSION)]


def test_the_policy_is_exact_for_its_agent_without_hold_out(path: Path) -> None:
    made = policy(load(path, "runs"), ["read"])
    assert (made.mode, made.hold_out, list(made.agents)) == (common_pb2.MODE_EXACT, 0.0, ["runs"])
    assert not made.HasField("budget")


def test_staged_calls_run_ahead_only_where_an_argument_can_make_them_reads() -> None:
    assert not contract("edit", ToolRule("staged", "ws")).speculate
    editor = contract("editor", ToolRule("staged", "ws", read_when={"command": "view"}))
    assert editor.speculate
    assert not editor.staged
    assert list(editor.read_when["command"].values) == ["view"]
    assert contract("bash", ToolRule("staged", "ws", shell_argument="cmd")).shell_argument == "cmd"


def test_a_bound_on_amplification_is_a_budget_that_must_be_earned(path: Path) -> None:
    made = policy(load(path, "runs"), ["read"], max_amplification=1.3)
    assert made.budget.credits_per_call == pytest.approx(0.3)
    assert made.budget.initial_credits == 0.0


def test_all_tools_are_behind_one_server_that_is_told_the_session() -> None:
    made = policy_file([], ["b", "a", "a"], address="http://127.0.0.1:80")
    (server,) = made.servers
    assert [tool.name for tool in server.tools] == ["a", "b"]
    assert {tool.http.url for tool in server.tools} == {"http://127.0.0.1:80/{session}/{tool}"}
    assert all(tool.http.json_body and tool.http.method == "POST" for tool in server.tools)


@pytest.mark.parametrize("text", ["nothing", "{}", '{"tools":{"a":{"effect":"maybe"}}}', '{"tools":{"a":{}}}'])
def test_what_is_no_policy_is_refused_with_the_file_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"broken\.json"):
        load(path, "runs")


@pytest.mark.parametrize(
    "rule", [ToolRule("staged", "ws", read_when={"c": "v"}), ToolRule("staged", "ws", shell_argument="c")]
)
def test_the_platform_takes_contracts_of_which_only_the_reads_run_ahead(rule: ToolRule) -> None:
    assert problems(contract_of(contract("tool", rule))) == []
