"""`python -m forerun.orchestrator`: the orchestrator as a process."""

from __future__ import annotations

import sys

from forerun.orchestrator.app import build
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.runtime.settings import main_for

main = main_for(OrchestratorSettings, build)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
