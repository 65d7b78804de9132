"""The tokenizer of a GGUF file as `tokenizer.json`, which the library `tokenizers` reads.

A GGUF file names its pre-tokenizer only; how the two families that are fetched split text is written down here, as
llama.cpp does it.
"""

from __future__ import annotations

from typing import Any, Final

from models.gguf_metadata import DamagedFile, Value

_SPECIAL: Final = 3  # "control" in the list of token types of the format
_QWEN2_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_PRE_TOKENIZERS: Final[dict[str, list[dict[str, Any]]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)],
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": _QWEN2_SPLIT}, "behavior": "Isolated", "invert": False},
        _byte_level(use_regex=False),
    ],
}


def tokenizer_json(metadata: dict[str, Value]) -> dict[str, Any]:
    """The content of `tokenizer.json`.

    Raises:
        DamagedFile: A field is missing, or the pre-tokenizer is none of those known here.
    """
    tokens = _list(metadata, "tokenizer.ggml.tokens")
    kinds = _list(metadata, "tokenizer.ggml.token_type")
    family = metadata.get("tokenizer.ggml.pre")
    if not isinstance(family, str) or family not in _PRE_TOKENIZERS:
        raise DamagedFile(f"pre-tokenizer {family!r} is not one of {sorted(_PRE_TOKENIZERS)}")
    special = [
        {"id": number, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for number, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _SPECIAL
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[family]},
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: number for number, text in enumerate(tokens)},
            "merges": [str(pair).split(" ") for pair in _list(metadata, "tokenizer.ggml.merges")],
        },
    }


def _list(metadata: dict[str, Value], key: str) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise DamagedFile(f"the metadata has no list {key}")
    return value
