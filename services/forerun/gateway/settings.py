"""Settings of the gateway."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from forerun.core import limits
from forerun.runtime.settings import ServiceSettings, service_config

_Address = Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")]


class ServedModelSettings(BaseModel):
    """A model that the gateway offers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=256)
    """What clients ask for."""
    addresses: tuple[_Address, ...] = Field(min_length=1, max_length=limits.MODEL_REPLICAS)
    """`host:port` of the gRPC endpoint of each Triton server that serves it. An agent's requests go to one of them,
    where its history drafts, unless it fails or the others have much less to do."""

    @field_validator("addresses")
    @classmethod
    def _different(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(addresses)) < len(addresses):
            raise ValueError("an address is there twice: each replica counts once")
        return addresses


class GatewaySettings(ServiceSettings):
    """The OpenAI-compatible endpoint in front of served models."""

    model_config = service_config("gateway")

    http_address: str = Field(default="127.0.0.1:8080", pattern=r"^[^\s:]*:\d{1,5}$")
    """`host:port` that agents use as the base of their OpenAI client, with `/v1`. Port 0 takes a free one."""
    models: tuple[ServedModelSettings, ...] = Field(default=(), max_length=64)
    """What it offers, as JSON."""
    first_token_seconds: float = Field(default=60.0, gt=0, le=3_600)
    """Until the first token, queueing at the model included. Then another replica is asked, or the request fails."""
    between_tokens_seconds: float = Field(default=30.0, gt=0, le=3_600)
    """Between two tokens; a model that falls silent is given up."""
    total_seconds: float = Field(default=600.0, gt=0, le=86_400)
    """Of a whole answer, with all attempts to get it."""
    predictor_targets: tuple[str, ...] = Field(default=(), max_length=64)
    """Addresses of the predictor's replicas, as JSON. The calls that it expects in a session (the header
    `x-forerun-session`) are drafts then. None asks nobody."""
    expected_seconds: float = Field(default=0.05, gt=0, le=5)
    """How long a request waits for them. Without an answer it goes on as if there were no predictor."""
    max_requests: int = Field(default=256, ge=1, le=100_000)
    """At once; further ones are refused with 429. Each keeps its conversation in memory."""
    max_body_bytes: int = Field(default=8_388_608, ge=1_024, le=67_108_864)
    """Of a request. Conversations of agents are long, and no longer than this."""
