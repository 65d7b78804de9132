"""The chart, rendered by helm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.kubernetes.places import REPOSITORY
from tests.cluster.kubernetes.programs import HELM

CHART = REPOSITORY / "helm" / "forerun"
PROFILES = sorted(path.stem for path in (CHART / "profiles").glob("*.yaml"))

needs_helm = pytest.mark.skipif(not HELM.is_current(), reason="helm is not built: `make helm` builds it in minutes")

Manifest = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs helm, which reads nothing of this machine's user."""
    nowhere = dict.fromkeys(("HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME", "KUBECONFIG"), "/nonexistent")
    return subprocess.run(
        [HELM.path, *arguments], env={**os.environ, **nowhere}, capture_output=True, text=True, check=False
    )


def render(*options: str, profile: str | None = None, name: str = "forerun") -> str:
    """What would be installed, as text."""
    values = () if profile is None else ("--values", str(CHART / "profiles" / f"{profile}.yaml"))
    done = helm("template", name, str(CHART), "--namespace", "platform", "--kube-version", "1.34.4", *values, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(*options: str, profile: str | None = None, name: str = "forerun") -> list[Manifest]:
    """What would be installed, except the custom resource definitions."""
    everything = yaml.safe_load_all(render(*options, profile=profile, name=name))
    return [one for one in everything if one and one["kind"] != "CustomResourceDefinition"]


def pods(found: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Names and specs of all pods that would be made."""
    for one in found:
        spec = one.get("spec", {})
        if one["kind"] == "Pod":
            yield one["metadata"]["name"], spec
        elif "template" in spec:
            yield one["metadata"]["name"], spec["template"]["spec"]


def named(found: list[Manifest], kind: str, name: str) -> Manifest:
    """One manifest."""
    (one,) = [one for one in found if one["kind"] == kind and one["metadata"]["name"] == name]
    return one


def container(found: list[Manifest], name: str) -> dict[str, Any]:
    """The container of this name."""
    (one,) = [one for _, spec in pods(found) for one in spec["containers"] if one["name"] == name]
    return dict(one)


def values_file(folder: Path, text: str) -> str:
    """An option that adds values."""
    file = folder / "values.yaml"
    file.write_text(text)
    return f"--values={file}"
