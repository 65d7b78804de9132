"""`python -m forerun.gateway`: the gateway as a process."""

from __future__ import annotations

import sys

from forerun.gateway.app import build
from forerun.gateway.settings import GatewaySettings
from forerun.runtime.settings import main_for

main = main_for(GatewaySettings, build)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
