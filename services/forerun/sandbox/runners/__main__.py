"""`python -m forerun.sandbox.runners`: a runner as a process."""

from __future__ import annotations

import sys

from forerun.runtime.settings import main_for
from forerun.sandbox.runners.app import build
from forerun.sandbox.runners.settings import RunnerSettings

main = main_for(RunnerSettings, build)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
