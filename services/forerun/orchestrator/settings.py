"""Settings of the orchestrator."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from forerun.core import limits
from forerun.runtime.settings import ServiceSettings, service_config


class OrchestratorSettings(ServiceSettings):
    """Owns sessions: their journal, their calls, and what runs ahead of them."""

    model_config = service_config("orchestrator")

    listen_address: str = "127.0.0.1:7400"
    """`host:port` for agents. A fixed port, so that a restart is found again."""
    policy_file: Path | None = None
    """YAML file of policies and tool servers (local mode). Without it they come from the broker's key-value store."""
    secrets_directory: Path | None = None
    """Directory with one file for each secret that providers of models name in the policy."""
    sandbox_targets: tuple[str, ...] = ()
    """Addresses of workers that are known from the start; others are learned from their load reports."""
    verifier_target: str = "127.0.0.1:7430"
    """Address of the verifier, which certifies finished speculations."""
    partitions: int = Field(default=16, ge=1, le=4096)
    """Predictor partitions. The same number everywhere in an installation; changing it moves the journals' subjects."""
    replica: str = ""
    """Name of this replica, where candidates are sent. Empty takes a new random one with every start."""
    session_idle_seconds: float = Field(default=limits.SESSION_IDLE_SECONDS, gt=0, le=86_400)
    """A session without any message is ended after this, so that vanished clients do not hold memory."""
    reconnect_seconds: float = Field(default=60.0, gt=0, le=3_600)
    """How long a session without a stream waits for its client before it is ended."""
    journal_tool_schemas: bool = False
    """Writes the schemas of a session's tools into its journal, once. A predictor with a small model needs them."""
    max_sessions: int = Field(default=limits.SESSIONS_PER_REPLICA, ge=1, le=100_000)
    """Open sessions of this replica; one more is refused with RESOURCE_EXHAUSTED, which names this setting."""
    max_sessions_per_tenant: int = Field(default=limits.SESSIONS_PER_TENANT, ge=1, le=100_000)
    """Open sessions of one tenant on this replica; one more is refused with RESOURCE_EXHAUSTED."""
    max_calls_per_tenant: int = Field(default=limits.CALLS_IN_FLIGHT_PER_TENANT, ge=1, le=100_000)
    """Calls of one tenant that this replica runs at the same time; further ones wait in the order of their asking."""
    max_waiting_calls: int = Field(default=limits.CALL_QUEUE, ge=1, le=1_000_000)
    """Calls that wait on this replica; a message that would be too much is refused with RESOURCE_EXHAUSTED."""
