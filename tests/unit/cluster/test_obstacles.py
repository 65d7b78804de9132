"""Why a machine cannot hold a node: said in words, because tests are skipped with them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cluster.kubernetes import packages
from tests.cluster.kubernetes.errors import ClusterError


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_without_root_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in (packages.obstacle() or "")
    with pytest.raises(ClusterError, match="root"):
        packages.install()


@pytest.mark.usefixtures("root")
def test_what_is_missing_and_cannot_be_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    said = packages.obstacle() or ""
    assert "containerd" in said
    assert "apt-get" in said


@pytest.mark.usefixtures("root")
def test_other_cgroups_are_an_obstacle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "missing", lambda: [])
    monkeypatch.setattr(packages, "_CGROUPS", tmp_path)
    assert "cgroups" in (packages.obstacle() or "")
