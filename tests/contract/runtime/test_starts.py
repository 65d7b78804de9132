"""How long services wait for the broker when they start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun.operator.app import build as build_operator
from forerun.operator.settings import OperatorSettings
from forerun.orchestrator.app import build as build_orchestrator
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.predictor.app import build as build_predictor
from forerun.predictor.settings import PredictorSettings
from forerun.runtime.app import App
from forerun.runtime.settings import ServiceSettings
from forerun.sandbox.app import build as build_sandbox
from forerun.sandbox.settings import SandboxSettings
from forerun.verifier.app import build as build_verifier
from forerun.verifier.settings import VerifierSettings

BUILDS: list[tuple[type[ServiceSettings], Callable[[Any], App]]] = [
    (OrchestratorSettings, build_orchestrator),
    (PredictorSettings, build_predictor),
    (VerifierSettings, build_verifier),
    (SandboxSettings, build_sandbox),
    (OperatorSettings, build_operator),
]


@pytest.mark.parametrize(("kind", "build"), BUILDS, ids=[kind.service() for kind, _ in BUILDS])
async def test_a_service_waits_for_the_broker_as_long_as_it_was_told(
    kind: type[ServiceSettings], build: Callable[[Any], App], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No bound of the start around it is shorter."""
    if "data_dir" in kind.model_fields:
        monkeypatch.setenv(kind.variable("data_dir"), str(tmp_path))
    monkeypatch.setenv(kind.variable("nats_connect_seconds"), "240")
    (bus,) = [part for part in build(kind()).parts if part.name == "bus"]
    assert bus.start_seconds > 240.0
