"""Models that run in the server's Python backend: a stateful target, its draft, and the loop that couples them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from forerun.serving.backend.passes import ANSWER, PASS
from forerun.serving.backend.vocabulary import from_tokenizer
from forerun.serving.profile import Coupled, OpenVinoEngine, Profile, ToyEngine
from forerun.serving.textproto import Message, Word, text_of

TARGET: Final = "target"
DRAFT: Final = "draft"
CHAT: Final = "chat"
"""Makes prompts of conversations."""

SERVED: Final = "speculative"
"""The model that clients ask."""

_ENDS: Final = ("<end>", "<|endoftext|>", "<|im_end|>", "</s>", "<|eot_id|>")
"""Special tokens that end an answer, in the models that this backend runs. Those that a vocabulary lacks do nothing."""

_IDLE_SECONDS: Final = 120
"""A sequence that was not heard of for so long has lost its loop: the server and the models drop it."""


def coupled_models(profile: Profile, *, base: Path, generation: int = 1, orders: Path | None = None) -> dict[str, str]:
    """Files of the models; relative paths of the profile count from `base`. Orders: see `forerun.serving.orders`.

    Target and draft are stateful: loading them again under one name would lose the texts that are being decoded. So
    each generation has models of its own, and the loop, whose name clients know, comes in a version for each.
    """
    speculation = (
        profile.speculation if isinstance(profile.speculation, Coupled) else Coupled(kind="coupled", max_depth=0)
    )
    target, draft = profile.target, profile.draft
    assert isinstance(target, ToyEngine | OpenVinoEngine), "the caller chose by engine"
    target_name, draft_name = f"{TARGET}-{generation}", f"{DRAFT}-{generation}"
    files = _stateful(target_name, TARGET, profile, _engine(target, base))
    if isinstance(draft, ToyEngine | OpenVinoEngine):
        files |= _stateful(draft_name, DRAFT, profile, _engine(draft, base))
    settings = {
        "target_model": target_name,
        "draft_model": draft_name,
        "target": _vocabulary(target, base),
        "draft": None
        if draft is None or not isinstance(draft, ToyEngine | OpenVinoEngine)
        else _vocabulary(draft, base),
        "ends": list(_ENDS),
        "drafters": list(speculation.drafters),
        "history_tokens": speculation.history_tokens,
        "histories": speculation.histories,
        "tenant_histories": speculation.tenant_histories,
        "history_folder": None
        if speculation.history_folder is None
        else str((base / speculation.history_folder).resolve()),
        "orders": None if orders is None else str(orders.resolve()),
        "max_depth": speculation.max_depth,
        "branches": speculation.branches,
        "table": None if speculation.table is None else str((base / speculation.table).resolve()),
        "context_tokens": profile.context_tokens,
        "slots": profile.slots,
        "queued": profile.queued,
        "max_output_tokens": profile.max_output_tokens,
    }
    chat = {"engine": _engine(target, base)}
    files |= _python_model(CHAT, generation, "forerun.serving.backend.chat_model", _chat_config(), chat)
    return files | _python_model(SERVED, generation, "forerun.serving.backend.loop_model", _loop_config(), settings)


def _engine(engine: ToyEngine | OpenVinoEngine, base: Path) -> dict[str, Any]:
    settings = engine.model_dump(mode="json")
    if isinstance(engine, OpenVinoEngine):
        settings |= _paths(engine, base)
    return settings


def _paths(engine: OpenVinoEngine, base: Path) -> dict[str, str]:
    return {"weights": str((base / engine.weights).resolve()), "tokenizer": str((base / engine.tokenizer).resolve())}


def _tokens(engine: Mapping[str, Any]) -> int:
    """Real tokens, without the padding of the embedding."""
    if engine["kind"] == "toy":
        return int(engine["vocabulary"])
    return from_tokenizer("model", Path(engine["tokenizer"])).real


def _vocabulary(engine: ToyEngine | OpenVinoEngine, base: Path) -> dict[str, Any]:
    if isinstance(engine, ToyEngine):
        return {"toy": engine.vocabulary}
    return {"tokenizer": _paths(engine, base)["tokenizer"]}


def _stateful(name: str, role: str, profile: Profile, engine: Mapping[str, Any]) -> dict[str, str]:
    config: Message = {
        "max_batch_size": profile.slots,
        "sequence_batching": {
            "max_sequence_idle_microseconds": _IDLE_SECONDS * 1_000_000,
            # A pass never waits for others to join it: those that come meanwhile are batched anyway.
            "oldest": {"max_candidate_sequences": profile.slots, "max_queue_delay_microseconds": 0},
        },
        "input": [
            {"name": PASS, "data_type": Word("TYPE_INT32"), "dims": [-1], "allow_ragged_batch": True},
            {"name": "OPTIONS", "data_type": Word("TYPE_STRING"), "dims": [1], "optional": True},
        ],
        "output": [{"name": ANSWER, "data_type": Word("TYPE_FP64"), "dims": [-1]}],
    }
    settings = {
        "role": role,
        "engine": engine,
        "tokens": _tokens(engine),
        "slots": profile.slots,
        "context_tokens": profile.context_tokens,
        "idle_seconds": _IDLE_SECONDS,
    }
    return _python_model(name, 1, "forerun.serving.backend.stateful_model", config, settings)


def _chat_config() -> Message:
    return {
        "max_batch_size": 0,
        "input": [{"name": "REQUEST", "data_type": Word("TYPE_STRING"), "dims": [1]}],
        "output": [
            {"name": "TOKENS", "data_type": Word("TYPE_INT32"), "dims": [-1]},
            {"name": "EXPECTED", "data_type": Word("TYPE_STRING"), "dims": [1]},
        ],
    }


def _loop_config() -> Message:
    return {
        "max_batch_size": 0,
        "model_transaction_policy": {"decoupled": True},
        "input": [
            {"name": "PROMPT", "data_type": Word("TYPE_INT32"), "dims": [-1]},
            {"name": "OPTIONS", "data_type": Word("TYPE_STRING"), "dims": [1]},
        ],
        "output": [{"name": "EVENT", "data_type": Word("TYPE_STRING"), "dims": [1]}],
    }


def _python_model(name: str, version: int, module: str, config: Message, settings: Mapping[str, Any]) -> dict[str, str]:
    whole: Message = {
        "name": name,
        "backend": "python",
        **config,
        "instance_group": [{"count": 1, "kind": Word("KIND_CPU")}],
        "parameters": [{"key": "settings", "value": {"string_value": json.dumps(settings)}}],
    }
    source = f'from {module} import TritonPythonModel\n\n__all__ = ["TritonPythonModel"]\n'
    return {f"{name}/config.pbtxt": text_of(whole), f"{name}/{version}/model.py": source}
