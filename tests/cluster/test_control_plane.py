"""The fixture that operator and custom resources are tested on: a real etcd and kube-apiserver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kubernetes.control_plane import ControlPlane, control_plane
from tests.cluster.kubernetes.errors import ClusterError

LIST = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "lamps.test.forerun.dev"},
    "spec": {
        "group": "test.forerun.dev",
        "scope": "Namespaced",
        "names": {"plural": "lamps", "singular": "lamp", "kind": "Lamp"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.low <= self.high", "message": "low is above high"}
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        yield running


def lamp(low: int, high: int) -> str:
    metadata = {"name": f"lamp-{low}-{high}", "namespace": "default"}
    return json.dumps(
        {"apiVersion": "test.forerun.dev/v1", "kind": "Lamp", "metadata": metadata, "spec": {"low": low, "high": high}}
    )


def test_the_api_server_says_its_pinned_release(plane: ControlPlane) -> None:
    version = json.loads(plane.kubectl("version", "--output=json"))
    assert version["serverVersion"]["gitVersion"].startswith("v1.34.")


def test_custom_resources_are_validated_by_their_rules(plane: ControlPlane) -> None:
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(LIST))
    plane.kubectl("wait", "--for=condition=Established", "crd/lamps.test.forerun.dev", "--timeout=30s")
    plane.kubectl("apply", "--filename=-", stdin=lamp(1, 2))
    with pytest.raises(ClusterError, match="low is above high"):
        plane.kubectl("apply", "--filename=-", stdin=lamp(2, 1))


def test_a_user_without_a_role_may_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    plane.write_kubeconfig(tmp_path / "nobody", "nobody")
    assert plane.kubectl("auth", "can-i", "get", "pods", "--as=nobody", check=False).strip() == "no"
    assert plane.kubectl("auth", "can-i", "get", "pods").strip() == "yes"


def test_two_run_side_by_side_and_leave_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    with control_plane(tmp_path) as other:
        assert other.url != plane.url
        other.kubectl("create", "namespace", "only-there")
        assert "only-there" not in plane.kubectl("get", "namespaces", "--output=name")
    assert not list(tmp_path.glob("*.pid"))
