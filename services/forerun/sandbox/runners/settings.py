"""Settings of a runner."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from forerun.runtime.settings import ServiceSettings, service_config
from forerun.sandbox.isolation.levels import Choice


class RunnerSettings(ServiceSettings):
    """Runs the commands of one session, and ends with it. Started by a pod; knows no broker and holds no token."""

    model_config = service_config("runner")

    key_directory: Path = Path("/run/forerun/key")
    """Directory with `tls.crt`, `tls.key` and `ca.crt`, made by `forerun runner-key`. The key is removed from it before
    the first command: a runner that is started again there serves nobody."""
    data_dir: Path = Path(".forerun/runner")
    """Directory of workspaces and of the commands' /tmp. It is emptied at the start."""
    emptied: str = ""
    """Directories beside it that commands can write to, with commas between them. What commands leave there counts as
    theirs, and is removed as soon as none runs."""
    isolation: Choice = Choice.AUTO
    """Isolation of each command inside of the runner; `auto` takes the strongest that works there. Commands of one
    session that run at once are separated by it alone: at `process` they can see each other's files."""
    runsc: str = "runsc"
    """The program of the level `gvisor`, for commands inside of the runner where that works."""
    max_free_seconds: float = Field(default=20 * 24 * 3600.0, ge=60)
    """A runner that no session took for so long ends, before its certificate does."""
