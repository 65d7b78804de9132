"""Settings of the sandbox service."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from forerun.core import limits
from forerun.runtime.settings import ServiceSettings, service_config
from forerun.runtime.tls import Tls
from forerun.sandbox.isolation.levels import Choice, LevelName


class SandboxSettings(ServiceSettings):
    """Runs tools: by HTTP, MCP, Python and commands in a sandbox with workspaces that fork."""

    model_config = service_config("sandbox")

    worker: str = ""
    """Name of this worker, in its load reports. Empty takes a new random one with every start."""
    advertised_address: str = ""
    """`host:port` where other services reach this worker. Empty tells the address it listens on."""
    policy_file: Path | None = None
    """YAML file with the tool servers (local mode). Without it they come from the broker's key-value store."""
    data_dir: Path = Path(".forerun/sandbox")
    """Directory of workspaces and of the commands' /tmp, for this worker alone, on a disk that can be overlaid (not
    itself an overlay: in a container an emptyDir or a volume)."""
    secrets_directory: Path | None = None
    """Directory with one file for each secret that tool definitions name as `secret:NAME`."""
    authoritative_slots: int = Field(default=8, ge=1, le=1024)
    """Executions that agents wait for, at once. Speculation never takes one of these."""
    speculative_slots: int = Field(default=4, ge=0, le=1024)
    """Executions ahead of time, at once. Authoritative work takes these too when its own are full."""
    pool: str = ""
    """Name of the SpeculationPool that this worker belongs to: its load is reported for it, and its capacity bounds the
    speculative slots, below `speculative_slots`. Empty: none."""
    authoritative_queue: int = Field(default=limits.CALL_QUEUE, ge=0, le=100_000)
    """Authoritative executions that may wait for a slot; beyond it they are refused, so that callers go elsewhere."""
    isolation: Choice = Choice.AUTO
    """Isolation of commands. `auto` takes the strongest level whose trial command worked when the worker started:
    `gvisor` where runsc is installed (0.2 s more for each command), else `pod` where `runners` names some, else
    `bubblewrap`, else `process`. A worker that is
    told another level refuses to start without it; a tool server's own `min_isolation` may still ask for more."""
    min_isolation: LevelName = LevelName.PROCESS
    """Weakest isolation that this worker may run at; it refuses to start with less."""
    runsc: str = "runsc"
    """The program of the level `gvisor`, by path or by its name on PATH. Rootless: it needs no rights of its own."""
    runners: str = ""
    """`host:port` of runners, with commas between them, for the level `pod`; a name stands for all addresses that it
    has. Empty: none."""
    runners_certificate_file: Path | None = None
    """Certificate by which this worker proves to runners that it is one, in PEM. Needed with `runners`."""
    runners_key_file: Path | None = None
    """Key of that certificate in PEM."""
    runners_ca_file: Path | None = None
    """Authority in PEM that certificates of runners come from, and nothing else."""
    runners_wait_seconds: float = Field(default=20.0, ge=0, le=600)
    """How long a command that an agent waits for waits for a free runner. Longer than a pod takes to start."""
    runners_idle_seconds: float = Field(default=300.0, ge=1, le=86_400)
    """A session that runs no command for so long lets go of its runner; its next command takes another one."""
    runners_kept: int = Field(default=1, ge=0, le=1000)
    """Free runners that work ahead of time leaves to agents."""
    runners_own_kernel: bool = False
    """The RuntimeClass of the runners gives each a kernel of its own, as gVisor and Kata do. Then `min_isolation:
    gvisor` is met by the level `pod`. Nobody can check that from inside, so it is yours to say."""
    runners_reach_out: bool = False
    """Network policies let runners connect to something. Then a command that was killed may have changed something
    there, and is reported so."""
    trusted_servers: str = ""
    """Names of tool servers, with commas between them, whose commands run at level `process` in this worker where
    another level is in use: they can read what the worker can, its credentials included. For tools of your own."""
    max_observation_bytes: int = Field(default=limits.RESULT_BYTES, ge=1024)
    """Longest answer of a tool whose contract has no cap of its own. More is an error that names this setting."""
    workspace_max_entries: int = Field(default=limits.WORKSPACE_FILES, ge=1)
    """Files, directories and links of one workspace."""
    workspace_max_bytes: int = Field(default=limits.WORKSPACE_BYTES, ge=1)
    """Content of one workspace."""
    workspace_max_forks: int = Field(default=limits.WORKSPACE_FORKS, ge=1, le=10_000)
    """Forks of one workspace at once."""
    workspace_idle_seconds: float = Field(default=24 * 3600.0, ge=60)
    """A workspace that nobody used for so long is removed: its session ended without a word. Longer than any pause."""
    list_tools_seconds: float = Field(default=10.0, gt=0, le=60)
    """How long a start waits for MCP servers to list their tools. Those that come later are added when they come."""
    report_seconds: float = Field(default=1.0, gt=0, le=5)
    """Between two load reports. Orchestrators forget a worker after a few silent seconds."""

    @model_validator(mode="after")
    def _has_whole_runners(self) -> Self:
        given = [self.runners_certificate_file, self.runners_key_file, self.runners_ca_file]
        if any(given) and not all(given):
            raise ValueError("runners_certificate_file, runners_key_file and runners_ca_file are given together")
        if self.runners and not all(given):
            raise ValueError("runners need runners_certificate_file, runners_key_file and runners_ca_file")
        return self

    def runners_tls(self) -> Tls | None:
        """What this worker proves itself to runners with, where there are any."""
        if self.runners_certificate_file is None or self.runners_key_file is None or self.runners_ca_file is None:
            return None
        return Tls(
            certificate_file=self.runners_certificate_file,
            key_file=self.runners_key_file,
            ca_file=self.runners_ca_file,
        )


def names(listed: str) -> tuple[str, ...]:
    """The entries of a list with commas."""
    return tuple(one.strip() for one in listed.split(",") if one.strip())
