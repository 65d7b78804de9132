"""`python -m forerun.predictor`: the predictor as a process."""

from __future__ import annotations

import sys

from forerun.predictor.app import build
from forerun.predictor.settings import PredictorSettings
from forerun.runtime.settings import main_for

main = main_for(PredictorSettings, build)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
