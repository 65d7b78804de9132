"""Settings of the predictor."""

from __future__ import annotations

from pydantic import Field

from forerun.runtime.settings import ServiceSettings, service_config


class PredictorSettings(ServiceSettings):
    """Learns from the journal as it passes, and publishes candidates for the next message of a session."""

    model_config = service_config("predictor")

    partitions: tuple[int, ...] = ()
    """Partitions of (tenant, agent) that this process is responsible for. Empty takes all of them."""
    candidates: int = Field(default=8, ge=1, le=32)
    """Candidates of one prediction. Ranks beyond a few carry hardly any probability."""
    save_seconds: float = Field(default=120.0, gt=0, le=3_600)
    """Between two saves of models that have changed. A save costs as much as hundreds of predictions; what was learned
    since the last one is lost in a crash."""
    tracked_sessions: int = Field(default=20_000, ge=1, le=1_000_000)
    """Sessions whose position in the journal is remembered, so that a gap is noticed."""
