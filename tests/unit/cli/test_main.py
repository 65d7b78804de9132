"""The command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.cli import main as command_line
from forerun.cli.main import COMMANDS, SERVICES, Command, main

POLICY = """
policies:
  - name: shop
    version: "7"
    mode: MODE_EXACT
    tools:
      - {tool: get_order, effect: EFFECT_READ, speculate: true, reads: [{template: "orders/{id}"}]}
      - {tool: "note*", effect: EFFECT_WRITE, staged: true, writes: [{template: notes, scope: RESOURCE_SCOPE_SESSION}]}
      - {tool: web, effect: EFFECT_READ, open_world: true, timeout_seconds: 5}
servers:
  - name: http
    tools:
      - {name: get_order, http: {method: GET, url: "http://127.0.0.1:1/{id}"}}
      - {name: refund, http: {method: POST, url: "http://127.0.0.1:1/refund"}}
"""


def test_help_lists_what_is_built(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "COMMANDS", (*COMMANDS, Command("soon", "forerun.cli.soon", "not built")))
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "forerun COMMAND" in text and "soon" not in text
    for one in (*[one for one in COMMANDS if one.name in ("up", "policy", "off", "on")], *SERVICES):
        assert f"  {one.name} " in text and one.summary in text


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["soon"]) == 2
    assert "no command 'soon'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["policy"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["up"],
        ["demo"],
        ["replay", "f"],
        ["policy", "check", "f"],
        ["plan", "check", "f"],
        ["off"],
        ["on"],
        ["verifier"],
    ],
    ids=" ".join,
)
def test_wrong_options_show_the_usage_of_the_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words, "--bogus"])
    assert caught.value.code == 2
    command = " ".join(word for word in words if word != "f")
    assert capsys.readouterr().err.startswith(f"usage: forerun {command} [-h]")


def test_a_service_is_dispatched(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_VERIFIER_AUDITS_AT_ONCE", "3")
    assert main(["verifier", "--print-settings"]) == 0
    assert json.loads(capsys.readouterr().out)["FORERUN_VERIFIER_AUDITS_AT_ONCE"] == 3
    monkeypatch.setenv("FORERUN_VERIFIER_AUDITS_AT_ONCE", "0")
    assert main(["verifier", "--check-config"]) == 2


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out.startswith("forerun ")


def test_a_policy_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    assert main(["policy", "check", str(file), "--json"]) == 0
    (policy,) = json.loads(capsys.readouterr().out)["policies"]
    assert (policy["name"], policy["version"], policy["mode"]) == ("shop", "7", "exact")
    assert policy["without_contract"] == ["refund"]
    assert {one["tool"]: one["timeout_seconds"] for one in policy["tools"]} == {"get_order": 60, "note*": 60, "web": 5}
    assert main(["policy", "check", str(file)]) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line.strip()}
    assert lines["get_order"].startswith("get_order read yes yes")
    assert "policy shop@7: mode exact" in text and "never run ahead: refund" in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "problem"),
    [("policies: [{nam: x}]", "nam"), ("[]", "mapping"), ("policies: [{name: x, alpha: 2}]", "alpha")],
)
def test_a_policy_file_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    assert main(["policy", "check", str(file)]) == 1
    assert problem in capsys.readouterr().err


def test_a_policy_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(tmp_path / "policy.yaml")]) == 3
    assert "No such file" in capsys.readouterr().err


def test_looking_at_this_machine_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_DATA", str(tmp_path / "state" / "forerun"))
    assert main(["up", "--check", "--port", "0"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_switch_without_a_platform(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORERUN_ADDRESS", raising=False)
    monkeypatch.delenv("FORERUN_TOKEN", raising=False)
    monkeypatch.setenv("FORERUN_DATA", str(tmp_path))
    assert main(["off"]) == 3
    assert "forerun up" in capsys.readouterr().err
