"""Settings of the snapshots service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from forerun.core import limits
from forerun.runtime.settings import ServiceSettings, service_config

_DAY_SECONDS = 24 * 60 * 60.0


class SnapshotsSettings(ServiceSettings):
    """Keeps versioned state of sessions on disk."""

    model_config = service_config("snapshots")

    data_dir: Path = Path(".forerun/snapshots")
    """Folder of the snapshots, used by one process at a time. Each tenant has a folder of its own in it."""
    tenant_max_bytes: int = Field(default=8 * 1024 * limits.MIB, gt=0)
    """What one tenant may have on disk. Writes above it are refused; collecting makes room."""
    blob_max_bytes: int = Field(default=limits.RESULT_BYTES, gt=0)
    """The largest blob: as large as the largest result of a call."""
    line_max_bytes: int = Field(default=512 * limits.MIB, gt=0)
    """What the commits of one line may store in all: the budget of a run, so that none takes the tenant's room."""
    line_retention_seconds: float = Field(default=30 * _DAY_SECONDS, gt=0)
    """A line that was not committed to for so long is let go with its versions: as long as the journal is kept."""
    branches_max: int = Field(default=10_000, gt=0)
    """Open branches of one tenant. They are forks of running steps, so thousands mean that somebody loses them."""
    branch_max_bytes: int = Field(default=64 * limits.MIB, gt=0)
    """What one branch may hold beyond its base, blobs included: one result of the largest size."""
    branches_max_bytes: int = Field(default=256 * limits.MIB, gt=0)
    """What the open branches of one tenant may hold in memory. Blobs are on disk and do not count."""
    branch_idle_seconds: float = Field(default=3_600.0, gt=0)
    """A branch that nobody touched for so long is dropped: its owner is gone. Longer than the longest call."""
    grace_seconds: float = Field(default=600.0, gt=0)
    """How long a blob that nothing refers to is kept after its last use: the time between storing and referring."""
    collect_interval_seconds: float = Field(default=600.0, gt=0)
    """Pause between two collections. A collection reads all nodes of a tenant, so it should not run all the time."""
    cached_nodes: int = Field(default=4_096, gt=0)
    """Nodes of trees kept in memory, about 10 KB each."""
