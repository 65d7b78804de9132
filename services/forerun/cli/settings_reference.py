"""Prints docs/reference/settings.md: `python -m forerun.cli.settings_reference`."""

from __future__ import annotations

import sys

from forerun.gateway.settings import GatewaySettings
from forerun.operator.settings import OperatorSettings
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.predictor.settings import PredictorSettings
from forerun.runtime.settings import settings_reference
from forerun.sandbox.runners.settings import RunnerSettings
from forerun.sandbox.settings import SandboxSettings
from forerun.snapshots.settings import SnapshotsSettings
from forerun.verifier.settings import VerifierSettings

ALL = (
    OrchestratorSettings,
    PredictorSettings,
    VerifierSettings,
    SnapshotsSettings,
    SandboxSettings,
    RunnerSettings,
    OperatorSettings,
    GatewaySettings,
)

if __name__ == "__main__":
    sys.stdout.write(settings_reference(ALL))
