"""`python -m forerun.verifier`: the verifier as a process."""

from __future__ import annotations

import sys

from forerun.runtime.settings import main_for
from forerun.verifier.app import build
from forerun.verifier.settings import VerifierSettings

main = main_for(VerifierSettings, build)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
