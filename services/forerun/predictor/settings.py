"""Settings of the predictor."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from forerun.runtime.settings import ServiceSettings, service_config


class SmallModelSettings(BaseModel):
    """A small model that gives second guesses, where they pay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=256)
    """In the ledger, and by which its provider knows it."""
    url: str = Field(pattern=r"^(kserve|https?)://[^/\s@]+(/\S*)?$")
    """`kserve://host:port` of a Triton server with our loop, or an OpenAI-compatible address up to `/v1`."""
    secret: str = ""
    """Name of the secret that is sent as the bearer token; a file of that name in `secrets_directory`."""
    deadline_seconds: float = Field(default=8.0, gt=0, le=120)
    """Of one guess. Above what agents' models take, guesses come too late."""
    concurrency: int = Field(default=1, ge=1, le=64)
    """Guesses at once; a further one is not asked for."""
    unsure_below: float = Field(default=0.5, ge=0, le=1)
    """Only where the best candidate of the statistics is less probable than this."""
    worth_per_second: float = Field(default=1.0, ge=0)
    """Of an agent's waiting, as `lambdaPerSecond` of the policy."""
    cost_per_second: float = Field(default=1.0, ge=0)
    """Of the model, as `slotSecondCost` of the policy. 0 where it runs on what nobody else would use."""
    prompt_chars: int = Field(default=900, ge=100, le=16_384)
    """Of the session's text in a prompt. Tools come on top; all of it has to fit the model's context."""
    output_tokens: int = Field(default=96, ge=8, le=1_024)
    """Of a guessed call, at most."""
    tools: int = Field(default=4, ge=1, le=64)
    """The likeliest tools by the statistics, of which one is guessed."""


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
    small_model: SmallModelSettings | None = None
    """As JSON. None asks no model. Needs `journal_tool_schemas` of the orchestrator: only valid calls are guessed."""
    secrets_directory: Path | None = None
    """Directory with the secret of the small model's provider."""
