"""Models on GPU engines, which batch, cache and speculate themselves: their configuration, and our depth table in it.

Written from the engines' documentation and samples (vLLM's `speculative_config`, TensorRT-LLM's LLM API); the
configurations are checked by a real Triton server, the engines themselves need GPUs that tests do not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from forerun.serving.profile import EngineSpeculation, Profile, TensorRtLlmEngine, VllmEngine
from forerun.serving.textproto import Message, Word, text_of

SERVED: Final = "target"
"""The model that clients ask."""

PLAIN: Final = "target-plain"
"""Its copy without speculation, for requests that opt out."""

_NGRAM_LENGTHS: Final = (2, 5)
_DECODING_TYPES: Final[Mapping[str, str]] = {"ngram": "NGram", "draft_model": "DraftTarget", "eagle3": "Eagle3"}


def vllm_models(profile: Profile, depths: Sequence[tuple[int, int]]) -> dict[str, str]:
    """Files of the models on vLLM; the profile's target must be on it."""
    target = profile.target
    assert isinstance(target, VllmEngine), "the caller chose by engine"
    common: dict[str, Any] = {
        "model": target.model,
        "tensor_parallel_size": target.gpus,
        "gpu_memory_utilization": target.memory_share,
        "max_model_len": profile.context_tokens,
        "max_num_seqs": profile.slots,
        "enable_prefix_caching": True,
        **target.arguments,
    }
    files = {}
    speculation = profile.speculation if isinstance(profile.speculation, EngineSpeculation) else None
    for name in (SERVED, PLAIN) if speculation is not None and speculation.plain_copy else (SERVED,):
        arguments = dict(common)
        if name == SERVED and speculation is not None:
            arguments["speculative_config"] = _vllm_speculation(profile, speculation, depths)
        files[f"{name}/config.pbtxt"] = text_of(_vllm_config(name))
        files[f"{name}/1/model.json"] = json.dumps(arguments, indent=2) + "\n"
    return files


def _vllm_speculation(profile: Profile, chosen: EngineSpeculation, depths: Sequence[tuple[int, int]]) -> dict[str, Any]:
    found: dict[str, Any] = {"method": chosen.method, "num_speculative_tokens": chosen.max_depth}
    if chosen.method == "ngram":
        found["prompt_lookup_min"], found["prompt_lookup_max"] = _NGRAM_LENGTHS
    if chosen.method == "eagle3":
        found["model"] = chosen.head
    if chosen.method == "draft_model" and isinstance(profile.draft, VllmEngine):
        found["model"] = profile.draft.model
        found["draft_tensor_parallel_size"] = profile.draft.gpus
    if depths:
        found["num_speculative_tokens_per_batch_size"] = _ranges(depths, profile.slots)
    return found


def _ranges(depths: Sequence[tuple[int, int]], slots: int) -> list[list[int]]:
    """[[first batch size, last, depth], ...] without gaps up to all slots; 0 is off."""
    found, first = [], 1
    for last, depth in [*depths, (slots, 0)]:
        end = min(last, slots)
        if end >= first:
            found.append([first, end, depth])
            first = end + 1
    return found


def _vllm_config(name: str) -> Message:
    return {
        "name": name,
        "backend": "vllm",
        "max_batch_size": 0,  # the engine batches
        "model_transaction_policy": {"decoupled": True},
        "input": [
            {"name": "text_input", "data_type": Word("TYPE_STRING"), "dims": [1]},
            {"name": "stream", "data_type": Word("TYPE_BOOL"), "dims": [1], "optional": True},
            {"name": "sampling_parameters", "data_type": Word("TYPE_STRING"), "dims": [1], "optional": True},
            {"name": "exclude_input_in_output", "data_type": Word("TYPE_BOOL"), "dims": [1], "optional": True},
            {"name": "return_finish_reason", "data_type": Word("TYPE_BOOL"), "dims": [1], "optional": True},
            {"name": "return_num_input_tokens", "data_type": Word("TYPE_BOOL"), "dims": [1], "optional": True},
            {"name": "return_num_output_tokens", "data_type": Word("TYPE_BOOL"), "dims": [1], "optional": True},
        ],
        "output": [
            {"name": "text_output", "data_type": Word("TYPE_STRING"), "dims": [-1]},
            {"name": "finish_reason", "data_type": Word("TYPE_STRING"), "dims": [-1]},
            {"name": "num_input_tokens", "data_type": Word("TYPE_UINT32"), "dims": [1]},
            {"name": "num_output_tokens", "data_type": Word("TYPE_UINT32"), "dims": [-1]},
        ],
        "instance_group": [{"count": 1, "kind": Word("KIND_MODEL")}],
        # Off by default, and the only way to tokens and times per model.
        "parameters": [{"key": "REPORT_CUSTOM_METRICS", "value": {"string_value": "true"}}],
    }


def tensorrt_llm_models(profile: Profile, depths: Sequence[tuple[int, int]]) -> dict[str, str]:
    """Files of the models on TensorRT-LLM, but for those that its image brings."""
    target = profile.target
    assert isinstance(target, TensorRtLlmEngine), "the caller chose by engine"
    speculation = profile.speculation if isinstance(profile.speculation, EngineSpeculation) else None
    files = {}
    for name in (SERVED, PLAIN) if speculation is not None and speculation.plain_copy else (SERVED,):
        arguments: dict[str, Any] = {
            "model": target.model,
            "backend": "pytorch",
            "tensor_parallel_size": target.gpus,
            "max_seq_len": profile.context_tokens,
            "max_batch_size": profile.slots,
            "kv_cache_config": {"free_gpu_memory_fraction": target.memory_share, "enable_block_reuse": True},
            **target.arguments,
            "triton_config": {"max_batch_size": 0, "decoupled": True},
        }
        if name == SERVED and speculation is not None:
            arguments["speculative_config"] = _tensorrt_llm_speculation(profile, speculation, depths)
        files[f"{name}/config.pbtxt"] = text_of(_tensorrt_llm_config(name))
        files[f"{name}/1/model.yaml"] = yaml.safe_dump(arguments, sort_keys=False)
    return files


def _tensorrt_llm_speculation(
    profile: Profile, chosen: EngineSpeculation, depths: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "decoding_type": _DECODING_TYPES[chosen.method],
        "max_draft_len": chosen.max_depth,
    }
    if chosen.method == "ngram":
        found["max_matching_ngram_size"] = _NGRAM_LENGTHS[1]
    if chosen.method == "eagle3":
        found["speculative_model"] = chosen.head
    if chosen.method == "draft_model" and isinstance(profile.draft, TensorRtLlmEngine):
        found["speculative_model"] = profile.draft.model
    # Above the last batch size of a schedule the engine drafts nothing, so zeros are left out.
    schedule = {batch: depth for batch, depth in depths if depth}
    if schedule:
        found["draft_len_schedule"] = schedule
    return found


def _tensorrt_llm_config(name: str) -> Message:
    numbers = {
        "sampling_param_temperature": "FP32",
        "sampling_param_top_k": "INT32",
        "sampling_param_top_p": "FP32",
        "sampling_param_frequency_penalty": "FP32",
        "sampling_param_presence_penalty": "FP32",
        "sampling_param_max_tokens": "INT32",
        "sampling_param_seed": "UINT64",
        "sampling_param_exclude_input_from_output": "BOOL",
        "sampling_param_return_perf_metrics": "BOOL",
        "return_finish_reason": "BOOL",
        "return_stop_reason": "BOOL",
        "streaming": "BOOL",
        "stop": "BOOL",
    }
    optional: list[Message] = [
        {"name": one, "data_type": Word(f"TYPE_{kind}"), "dims": [1], "optional": True} for one, kind in numbers.items()
    ]
    outputs = {"text_output": "STRING", "finish_reason": "STRING", "stop_reason": "STRING"}
    counts = {"acceptance_rate": "FP32", "total_accepted_draft_tokens": "INT32", "total_draft_tokens": "INT32"}
    return {
        "name": name,
        "backend": "python",
        "instance_group": [{"count": 1, "kind": Word("KIND_CPU")}],  # the engine finds its GPUs itself
        "input": [
            {"name": "text_input", "data_type": Word("TYPE_STRING"), "dims": [-1]},
            {"name": "sampling_param_stop", "data_type": Word("TYPE_STRING"), "dims": [-1], "optional": True},
            *optional,
        ],
        "output": [
            *({"name": one, "data_type": Word(f"TYPE_{kind}"), "dims": [-1]} for one, kind in outputs.items()),
            *({"name": one, "data_type": Word(f"TYPE_{kind}"), "dims": [1]} for one, kind in counts.items()),
        ],
    }
