"""`forerun policy check`: contracts beside the tools of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.cli.main import main

ROOT = Path(__file__).parents[3]
HTTP = {"http": {"method": "POST", "url": "http://127.0.0.1/x"}}
COMMAND = {"command": {"argv": ["true"]}}
STATE = [{"template": "state", "scope": "RESOURCE_SCOPE_SESSION"}]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Checks a policy with contracts and servers, as people and as programs see it."""

    def run(contracts: list[dict[str, Any]], servers: list[dict[str, Any]]) -> dict[str, Any]:
        file = tmp_path / "policy.yaml"
        file.write_text(json.dumps({"policies": [{"name": "p", "tools": contracts}], "servers": servers}))
        assert main(["policy", "check", str(file), "--json"]) == 0
        (policy,) = json.loads(capsys.readouterr().out)["policies"]
        assert main(["policy", "check", str(file)]) == 0
        seen = " ".join(capsys.readouterr().out.split())
        assert all(f"warning: {one}" in seen for one in policy["warnings"])
        assert isinstance(policy, dict)
        return policy

    return run


def test_every_contract_of_the_example_is_of_a_tool_that_the_example_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(ROOT / "docs" / "policy.example.yaml"), "--json"]) == 0
    (policy,) = json.loads(capsys.readouterr().out)["policies"]
    assert (policy["warnings"], policy["without_contract"]) == ([], [])
    assert {one["tool"]: one["ahead"] for one in policy["tools"]}["units.convert_units"] == "yes"


def test_a_contract_that_no_server_of_the_file_offers_is_no_contract(check: Any) -> None:
    names = ("get_ordr", "convert_units", "far*", "units.other", "units.*", "get_*", "nothing_like_it")
    policy = check(
        [{"tool": name, "effect": "EFFECT_READ"} for name in names],
        [
            {"name": "shop", "tools": [{"name": "get_order"} | HTTP]},
            {"name": "units", "mcp": {"command": ["x"], "stateless": True}},
        ],
    )
    assert [one.split(":")[0] for one in policy["warnings"]] == ["get_ordr", "convert_units", "nothing_like_it", "far*"]
    hints = {one.split(":")[0]: one.partition("did you mean ")[2] for one in policy["warnings"]}
    assert hints["get_ordr"].startswith("get_order")
    assert hints["convert_units"] == "units.convert_units?"
    assert policy["without_contract"] == []


def test_an_mcp_server_of_which_no_contract_speaks_is_without_one(check: Any) -> None:
    policy = check([{"tool": "a", "effect": "EFFECT_READ"}], [{"name": "units", "mcp": {"command": ["x"]}}])
    assert policy["without_contract"] == ["units.*"]


def test_staged_holds_only_in_the_workspace(check: Any) -> None:
    staged = {"effect": "EFFECT_WRITE", "writes": STATE, "staged": True, "speculate": True}
    python = {"python": {"entryPoint": "a:b"}}
    policy = check(
        [{"tool": name} | staged for name in ("sh", "pay", "py", "mcp.put")],
        [
            {"name": "s", "tools": [{"name": "sh"} | COMMAND, {"name": "pay"} | HTTP, {"name": "py"} | python]},
            {"name": "mcp", "mcp": {"command": ["x"], "stateless": True}},
        ],
    )
    seen = {one["tool"]: (one.get("staged", False), one["ahead"], one["repeatable"]) for one in policy["tools"]}
    elsewhere = (False, "no", False)
    assert seen == {"sh": (True, "yes", True), "pay": elsewhere, "py": elsewhere, "mcp.put": elsewhere}
    assert [one.split(":")[0] for one in policy["warnings"]] == ["pay", "py", "mcp.put"]


def test_what_keeps_state_with_its_connection_never_runs_ahead(check: Any) -> None:
    contracts = [
        {"tool": "st.get", "effect": "EFFECT_READ", "reads": STATE, "speculate": True},
        {"tool": "st.put", "effect": "EFFECT_WRITE", "writes": STATE},
    ]
    policy = check(contracts, [{"name": "st", "mcp": {"command": ["x"]}}])
    assert [one["ahead"] for one in policy["tools"]] == ["no", "no"]
    (warning,) = policy["warnings"]
    assert warning.startswith("st.get: never runs ahead on st") and "stateless: true" in warning


def test_a_file_without_servers_says_nothing_of_its_tools(check: Any) -> None:
    policy = check([{"tool": "a", "effect": "EFFECT_WRITE", "writes": STATE, "staged": True}], [])
    assert (policy["warnings"], policy["tools"][0]["repeatable"]) == ([], True)


def test_models_and_candidates_are_shown_with_their_defaults_and_without_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    provider = {"name": "house", "url": "http://127.0.0.1:1/v1", "secret": "key", "outputPrice": 2}
    answers = {"on": True, "maxCost": 0.5, "worth": 2}
    policies = [{"name": "p", "answers": answers}, {"name": "q"}]
    file.write_text(json.dumps({"policies": policies, "models": [{"name": "m", "race": {}, "providers": [provider]}]}))
    assert main(["policy", "check", str(file), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["answers"]["on"] for one in shown["policies"]] == [True, False]
    assert [one["answers"]["max_cost"] for one in shown["policies"]] == [0.5, None]
    (model,) = shown["models"]
    assert model["race"] == {"after_quantile": 0.95, "most_extra": 0.05}
    assert model["providers"][0] | {"secret": "key", "first_token_seconds": 30.0} == model["providers"][0]
    assert main(["policy", "check", str(file)]) == 0
    seen = " ".join(capsys.readouterr().out.split())
    assert "candidates of answers: up to 8, for 0.5 at most, a better answer is worth 2" in seen
    assert "candidates of answers: off" in seen
    assert "m house http://127.0.0.1:1/v1 m key 0/2 30/15/300 s 4096 64" in seen
    assert "never, with one provider" in seen
