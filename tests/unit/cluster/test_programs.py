"""When a program is built again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.kubernetes import programs
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.programs import KUBE, Program

GO_MOD = "module planted\n\nrequire (\n\texample.org/thing v1.2.3\n)\n"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program of which every build writes another file."""
    monkeypatch.setattr(programs, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path / "bin")
    sources = tmp_path / "sources" / "planted"
    sources.mkdir(parents=True)
    (sources / "go.mod").write_text(GO_MOD)
    return Program("planted", module="example.org/thing", variables=("x.version={version}",))


def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/bash\n{body}\n")
    go.chmod(0o755)
    monkeypatch.setattr(programs, "compiler", lambda: go)


def test_it_is_built_once_and_again_after_a_change(
    planted: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path, monkeypatch, f'echo built >>{tmp_path}/count; echo "$*" >"${{@: -2:1}}"')
    assert not planted.is_current()
    assert "-X x.version=v1.2.3" in planted.build().read_text()
    planted.build()
    assert (tmp_path / "count").read_text() == "built\n"
    (planted.sources / "go.mod").write_text(GO_MOD.replace("v1.2.3", "v1.2.4"))
    assert not planted.is_current()
    assert "-X x.version=v1.2.4" in planted.build().read_text()
    assert planted.is_current()


def test_a_failed_build_says_why_and_keeps_the_old_program(
    planted: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path, monkeypatch, 'echo old >"${@: -2:1}"')
    planted.build()
    (planted.sources / "main.go").write_text("package main")
    fake_compiler(tmp_path, monkeypatch, "echo missing go.sum entry >&2; exit 1")
    with pytest.raises(ClusterError, match=r"planted cannot be built: missing go\.sum entry"):
        planted.build()
    assert planted.path.read_text() == "old\n"
    assert not planted.is_current()


def test_the_release_of_kubernetes_is_that_of_its_parts() -> None:
    major, minor = KUBE.release().lstrip("v").split(".")[:2]
    assert (major, minor) == ("1", "34")
    assert f"version.gitMinor={minor}" in " ".join(KUBE.variables)
    go_mod = (KUBE.sources / "go.mod").read_text()
    patch = KUBE.release().rpartition(".")[2]
    assert f"k8s.io/client-go => k8s.io/client-go v0.{minor}.{patch}" in go_mod
