"""Settings of the verifier."""

from __future__ import annotations

from pydantic import Field

from forerun.runtime.settings import ServiceSettings, service_config


class VerifierSettings(ServiceSettings):
    """Certifies finished speculations and audits committed ones."""

    model_config = service_config("verifier")

    listen_address: str = "127.0.0.1:7430"
    """`host:port` for orchestrators, whose settings name it."""
    audits_at_once: int = Field(default=2, ge=1, le=64)
    """Audits that run at the same time. Each takes a speculative slot of a worker, so a few are enough for a sample."""
    settle_seconds: float = Field(default=1.0, ge=0, le=60)
    """After two results differed: how long to wait for writes that are on their way into the journal."""
