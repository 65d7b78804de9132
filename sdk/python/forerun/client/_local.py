"""Where the platform is: given, from the environment, or what `forerun up` wrote down."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from forerun.client._errors import NotConfigured

ADDRESS_VARIABLE: Final = "FORERUN_ADDRESS"
TOKEN_VARIABLE: Final = "FORERUN_TOKEN"
DATA_VARIABLE: Final = "FORERUN_DATA"
RUN_FILE: Final = "run.json"


def local_data_dir(environment: Mapping[str, str] | None = None) -> Path:
    """The data directory of local mode: `FORERUN_DATA`, else a folder of the user, so that any project finds it."""
    variables = os.environ if environment is None else environment
    given = variables.get(DATA_VARIABLE)
    if given:
        return Path(given)
    state = variables.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "forerun"


def resolve(address: str | None, token: str | None) -> tuple[str, str]:
    """Address and token: the given ones, else the environment's, else those of the local platform.

    Raises:
        NotConfigured: one of them is nowhere.
    """
    found_address = address or os.environ.get(ADDRESS_VARIABLE)
    found_token = token or os.environ.get(TOKEN_VARIABLE)
    if found_address and found_token:
        return found_address, found_token
    run_file = local_data_dir() / RUN_FILE
    local_address, local_token = _read_run_file(run_file)
    # The token of the local platform must not be sent to another one.
    if found_address and found_address != local_address:
        local_token = None
    found_address, found_token = found_address or local_address, found_token or local_token
    if not found_address:
        raise NotConfigured(
            "ADDRESS_MISSING",
            f"no platform is known: start one with `forerun up` (which writes {run_file}), or set "
            f"{ADDRESS_VARIABLE} and {TOKEN_VARIABLE}, or pass address= and token=",
            metadata={"file": str(run_file)},
        )
    if not found_token:
        raise NotConfigured(
            "CREDENTIAL_MISSING",
            f"no token for {found_address}: set {TOKEN_VARIABLE} or pass token=; whoever runs the platform has one",
            metadata={"address": found_address},
        )
    return found_address, found_token


def _read_run_file(path: Path) -> tuple[str | None, str | None]:
    try:
        run = json.loads(path.read_bytes())
        return str(run["address"]), Path(run["token_file"]).read_text().strip()
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotConfigured(
            "RUN_FILE_INVALID",
            f"{path} cannot be used ({type(error).__name__}); `forerun up` writes it anew",
            metadata={"file": str(path)},
        ) from error
