"""The Job that makes an installation's Secrets, against a real API server."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from forerun.cli.credentials.command import make, remove
from forerun.cli.credentials.material import SECRETS, Holder, Serving
from forerun.cli.credentials.secrets import Secrets
from forerun.runtime.auth import token_digest
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import FailedPrecondition
from forerun.runtime.ids import SystemIds
from tests.cluster.kubernetes.control_plane import ControlPlane, control_plane

IDS = SystemIds(SystemClock())
HOLDER = Holder("default", "agents")
SERVING = Serving(("forerun-services",), datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest.fixture
def secrets(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Secrets]:
    """In a namespace of the test's own, as an administrator."""
    namespace = request.node.name.replace("_", "-")[:60].rstrip("-")
    plane.kubectl("create", "namespace", namespace)
    pair = plane.authority.issue("user-admin", "admin", group="system:masters")
    context = ssl.create_default_context(cafile=plane.authority.pair.certificate)
    context.load_cert_chain(pair.certificate, pair.key)
    with Secrets(httpx.Client(base_url=plane.url, verify=context, trust_env=False), namespace) as opened:
        yield opened


def test_secrets_are_made_once_and_removed(secrets: Secrets) -> None:
    made = make(secrets, "forerun", HOLDER, IDS, SERVING)
    assert [line.split(":")[0] for line in made] == [f"forerun-{name}" for name in SECRETS]
    before = {name: secrets.read(f"forerun-{name}") for name in SECRETS}
    client, tokens = before["client"], before["tokens"]
    assert client is not None and tokens is not None
    (entry,) = json.loads(tokens["tokens.json"])["tokens"]
    assert entry["sha256"] == token_digest(client["token"].decode())
    assert make(secrets, "forerun", HOLDER, IDS, SERVING) == []
    assert {name: secrets.read(f"forerun-{name}") for name in SECRETS} == before
    assert len(remove(secrets, "forerun")) == len(SECRETS)
    assert remove(secrets, "forerun") == []
    assert secrets.read("forerun-client") is None


def test_what_is_missing_is_added_beside_what_people_put_there(plane: ControlPlane, secrets: Secrets) -> None:
    namespace = "test-what-is-missing-is-added-beside-what-people-put-there"
    password = base64.b64encode(b"mine").decode()
    metadata = {"name": "forerun-nats", "namespace": namespace}
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"orchestrator": password}}
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(theirs))
    make(secrets, "forerun", HOLDER, IDS, SERVING)
    found = secrets.read("forerun-nats")
    assert found is not None
    assert found["orchestrator"] == b"mine"
    assert found["predictor"]


def test_what_is_forbidden_is_named(plane: ControlPlane) -> None:
    pair = plane.authority.issue("user-nobody", "nobody")
    context = ssl.create_default_context(cafile=plane.authority.pair.certificate)
    context.load_cert_chain(pair.certificate, pair.key)
    with (
        Secrets(httpx.Client(base_url=plane.url, verify=context, trust_env=False), "default") as nobody,
        pytest.raises(FailedPrecondition, match=r'403 secrets "forerun-nats" is forbidden'),
    ):
        make(nobody, "forerun", HOLDER, IDS, SERVING)
