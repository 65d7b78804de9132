"""`python -m forerun.snapshots`: the snapshots service as a process."""

from __future__ import annotations

import sys

from forerun.runtime.settings import main_for
from forerun.snapshots.app import build
from forerun.snapshots.settings import SnapshotsSettings

main = main_for(SnapshotsSettings, build)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
