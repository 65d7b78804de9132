"""`python -m forerun.operator`: the operator as a process."""

from __future__ import annotations

import sys

from forerun.operator.app import build
from forerun.operator.settings import OperatorSettings
from forerun.runtime.settings import main_for

main = main_for(OperatorSettings, build)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
