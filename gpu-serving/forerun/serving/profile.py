"""Profiles: which models are served where, as typed files. Everything in the model repository follows from one.

A profile either *couples* a target with drafts in our own loop (CPU backends), where output with speculation is the
output without it, or leaves speculation to an *engine* on GPUs, which promises equality only up to numerics.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from forerun.runtime.errors import ErrorReason, FailedPrecondition, InvalidArgument

DEPTH: Final = 7
"""Most tokens that are drafted for one pass: with the token before them they fill a pass of eight rows."""

BUILT_IN: Final = ("toy", "cpu-test", "one-gpu", "several-gpus")

_GIB: Final = 1024**3


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shape(_Strict):
    """Sizes of a model, from its model card; the plan of GPU memory is made from them.

    Attributes:
        parameters: Number of weights.
        weight_bits: Bits of each as it is served.
        layers: Number of blocks.
        kv_heads: Heads of keys and values.
        head_width: Numbers in one head.
        cache_bits: Bits of a number in the cache.
        vocabulary: Rows of the embedding, padding included.
    """

    parameters: int = Field(ge=1)
    weight_bits: Literal[4, 8, 16, 32] = 16
    layers: int = Field(ge=1, le=1_000)
    kv_heads: int = Field(ge=1, le=1_000)
    head_width: int = Field(ge=1, le=10_000)
    cache_bits: Literal[8, 16, 32] = 16
    vocabulary: int = Field(ge=1, le=10_000_000)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self.parameters * self.weight_bits // 8

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory of one token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_width * self.cache_bits // 8


class StepTimes(_Strict):
    """Declared time of a toy's pass: constant up to so many rows in all, then growing with each.

    It stands for hardware whose passes are bound by memory first and by arithmetic later, without its noise.
    """

    fixed_seconds: float = Field(default=0.02, gt=0, le=10)
    free_rows: int = Field(default=32, ge=1, le=100_000)
    row_seconds: float = Field(default=0.0006, ge=0, le=10)


class ToyEngine(_Strict):
    """A tiny deterministic model for tests; see `forerun.serving.backend.toy`."""

    kind: Literal["toy"]
    vocabulary: int = Field(default=64, ge=8, le=65_536)
    order: int = Field(default=3, ge=1, le=8)
    seed: int = Field(default=1, ge=0)
    agreement: float = Field(default=1.0, ge=0, le=1)
    peak: float = Field(default=3.0, ge=0, le=100)
    times: StepTimes = StepTimes()


class OpenVinoEngine(_Strict):
    """A small real model on CPU.

    Attributes:
        weights: GGUF file of the Llama or Qwen2 family.
        tokenizer: Its `tokenizer.json`.
        threads: Of OpenVINO.
        int8: Weights as 8-bit integers; for drafts.
    """

    kind: Literal["openvino"]
    weights: Path
    tokenizer: Path
    threads: int = Field(default=2, ge=1, le=256)
    int8: bool = False


class VllmEngine(_Strict):
    """A model on Triton's vLLM backend.

    Attributes:
        model: Folder on the model volume, or a name on a hub.
        tokenizer: Its `tokenizer.json`, for the check of vocabularies.
        shape: Its sizes.
        gpus: Over how many its tensors are split.
        memory_share: Of each GPU's memory that vLLM may use.
        arguments: Further engine arguments, as vLLM names them.
    """

    kind: Literal["vllm"]
    model: str = Field(min_length=1, max_length=1_000)
    tokenizer: Path | None = None
    shape: Shape
    gpus: int = Field(default=1, ge=1, le=64)
    memory_share: float = Field(default=0.9, gt=0.1, le=0.98)
    arguments: dict[str, str | int | float | bool] = Field(default_factory=dict, max_length=100)


class TensorRtLlmEngine(_Strict):
    """A model on Triton's TensorRT-LLM backend, by its LLM API. Attributes: as for vLLM."""

    kind: Literal["tensorrt_llm"]
    model: str = Field(min_length=1, max_length=1_000)
    tokenizer: Path | None = None
    shape: Shape
    gpus: int = Field(default=1, ge=1, le=64)
    memory_share: float = Field(default=0.9, gt=0.1, le=0.98)
    arguments: dict[str, str | int | float | bool] = Field(default_factory=dict, max_length=100)


GpuEngine = VllmEngine | TensorRtLlmEngine
Engine = Annotated[ToyEngine | OpenVinoEngine | VllmEngine | TensorRtLlmEngine, Field(discriminator="kind")]
DrafterName = Literal["recall", "model"]
EngineMethod = Literal["suffix", "ngram", "draft_model", "eagle3"]


class Coupled(_Strict):
    """Speculation in our own loop.

    Attributes:
        drafters: Sources of drafts; they compete for each pass. `recall` drafts from the text itself, from earlier
            outputs and from expected ones, and costs no model; `model` needs a draft model.
        history_tokens: Of earlier outputs that are kept for each tenant and agent; 0: none are.
        histories: Most that are kept. Where there are more, the tenant that holds most gives up its oldest.
        tenant_histories: Most that one tenant holds, also where there is room.
        history_folder: Where they survive a restart; without it they do not.
        max_depth: Most tokens drafted for a pass.
        branches: More than 1: drafts that cost no model are trees, in which so many tokens at most follow the same one.
            The target has to verify trees.
        table: Step times that `forerun models calibrate` measured; without it the controller has its prior.
    """

    kind: Literal["coupled"]
    drafters: tuple[DrafterName, ...] = ("recall",)
    history_tokens: int = Field(default=1_000_000, ge=0, le=100_000_000)
    histories: int = Field(default=64, ge=2, le=100_000)
    tenant_histories: int = Field(default=32, ge=2, le=100_000)
    history_folder: Path | None = None
    max_depth: int = Field(default=DEPTH, ge=0, le=DEPTH)
    branches: int = Field(default=1, ge=1, le=DEPTH)
    table: Path | None = None


class EngineSpeculation(_Strict):
    """Speculation inside the engine.

    Attributes:
        method: How it drafts.
        max_depth: Most tokens drafted for a pass.
        head: For `eagle3`: the trained head.
        table: Step times that `forerun models calibrate` measured. The depth for each batch size follows from it.
        plain_copy: Serve the target a second time without speculation, for requests that opt out: engines cannot
            switch it off for one request. Costs the target's memory once more.
    """

    kind: Literal["engine"]
    method: EngineMethod
    max_depth: int = Field(default=4, ge=1, le=16)
    head: str = Field(default="", max_length=1_000)
    table: Path | None = None
    plain_copy: bool = False


Speculation = Annotated[Coupled | EngineSpeculation, Field(discriminator="kind")]


class Gpu(_Strict):
    """A kind of GPU of the machine.

    Attributes:
        count: How many there are.
        memory_bytes: Of each.
    """

    count: int = Field(ge=1, le=64)
    memory_bytes: int = Field(ge=_GIB)


class Profile(_Strict):
    """A set-up of model serving.

    Attributes:
        name: Of the profile.
        target: The model whose output counts.
        draft: A smaller one with the same vocabulary.
        speculation: How tokens are speculated; none: the target alone.
        context_tokens: Prompt, answer and what is drafted have to fit.
        slots: Sequences that are decoded at the same time.
        queued: Requests that wait for a slot; more are refused.
        gpus: What the machine has.
        max_output_tokens: Of one answer.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    target: Engine
    draft: Engine | None = None
    speculation: Speculation | None = None
    context_tokens: int = Field(default=4_096, ge=64, le=10_000_000)
    slots: int = Field(default=8, ge=1, le=4_096)
    queued: int = Field(default=64, ge=0, le=100_000)
    max_output_tokens: int = Field(default=1_024, ge=1, le=1_000_000)
    gpus: Gpu | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Profile:
        on_gpu = isinstance(self.target, VllmEngine | TensorRtLlmEngine)
        if self.draft is not None and type(self.draft) is not type(self.target):
            raise ValueError(f"target and draft need one engine, not {self.target.kind} and {self.draft.kind}")
        if on_gpu:
            self._check_gpu()
        elif isinstance(self.speculation, EngineSpeculation):
            raise ValueError(f"the engine {self.target.kind} has no speculation of its own: use kind: coupled")
        if isinstance(self.speculation, Coupled):
            if on_gpu:
                raise ValueError(f"the engine {self.target.kind} speculates itself: use kind: engine")
            if ("model" in self.speculation.drafters) != (self.draft is not None):
                raise ValueError("the drafter `model` and a draft model need each other")
            if self.speculation.branches > 1 and not self.verifies_trees:
                raise ValueError(f"the engine {self.target.kind} verifies chains only: leave speculation.branches at 1")
        return self

    @property
    def verifies_trees(self) -> bool:
        """The target can verify a tree of drafted tokens in one pass, with the scores that a chain would give."""
        return isinstance(self.target, ToyEngine)

    def _check_gpu(self) -> None:
        speculation, target = self.speculation, self.target
        if self.gpus is None:
            raise ValueError(f"the engine {target.kind} needs `gpus`: how many the machine has and their memory")
        if isinstance(target, VllmEngine | TensorRtLlmEngine) and target.gpus > self.gpus.count:
            raise ValueError(f"target.gpus is {target.gpus}, the machine has {self.gpus.count}")
        if not isinstance(speculation, EngineSpeculation):
            return
        if (speculation.method == "draft_model") != (self.draft is not None):
            raise ValueError("the method `draft_model` and a draft model need each other")
        if (speculation.method == "eagle3") != bool(speculation.head):
            raise ValueError("the method `eagle3` and its `head` need each other")
        if speculation.method == "suffix" and isinstance(target, TensorRtLlmEngine):
            raise ValueError("TensorRT-LLM has no suffix decoding: use ngram")


def read_profile(name_or_path: str) -> Profile:
    """The built-in profile of that name, or the one in that file.

    Raises:
        FailedPrecondition: There is no such file.
        InvalidArgument: It is not a profile; the message names each field that is wrong.
    """
    if name_or_path in BUILT_IN:
        text = files("forerun.serving").joinpath("profiles", f"{name_or_path}.yaml").read_text(encoding="utf-8")
    else:
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FailedPrecondition(
                ErrorReason.DEPENDENCY_MISSING,
                f"no profile {name_or_path!r}: name a file, or one of {', '.join(BUILT_IN)}",
            ) from error
    try:
        return Profile.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise InvalidArgument(ErrorReason.SETTING_INVALID, f"{name_or_path}: not YAML: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'profile'}: {one['msg']}" for one in error.errors())
        raise InvalidArgument(ErrorReason.SETTING_INVALID, f"{name_or_path}: {wrong}") from error
