"""What pods of the demo begin with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forerun.cli.demo.tools import deployed
from forerun.runtime.policy import policies_of, read_policy_file


def test_the_policy_names_the_desk_and_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "policy.yaml"
    options = ["--desk-url", "http://desk:8080", "--project", "/project", "--seed", "1", "--scale", "0.05"]
    monkeypatch.setattr(sys, "argv", ["deployed", "policy", *options, "--output", str(file)])
    deployed.main()
    message = read_policy_file(file)
    assert [policy.name for policy in policies_of(message).items] == ["demo"]
    urls = [tool.http.url for server in message.servers for tool in server.tools if tool.http.url]
    assert urls and all(url.startswith("http://desk:8080/") for url in urls)
    assert [server.workspace_seed for server in message.servers if server.workspace_seed] == ["/project"]


def test_the_project_holds_what_its_commands_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["deployed", "project", str(tmp_path / "project")])
    deployed.main()
    assert (tmp_path / "project/.bench/forerun/cli/demo/tools/workbench.py").is_file()
