"""`python -m forerun.sandbox`: the sandbox service as a process."""

from __future__ import annotations

import sys

from forerun.runtime.settings import main_for
from forerun.sandbox.app import build
from forerun.sandbox.settings import SandboxSettings

main = main_for(SandboxSettings, build)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
