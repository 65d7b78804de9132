"""Weights and sizes of a Llama-type model from a GGUF file, as float32 arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Array = Any
"""A numpy array. This code is checked where numpy is not installed: only the model server's environment has it."""


class UnknownArchitecture(ValueError):
    """The file holds a model that this code cannot run. The message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes:
    """The shape of a model.

    Attributes:
        layers: Number of blocks.
        width: Of the residual stream.
        heads: Of queries.
        kv_heads: Of keys and values; a divisor of `heads`.
        rope_base: Of the rotary embedding.
        epsilon: Of the normalisation.
        vocabulary: Number of tokens.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    rope_base: float
    epsilon: float
    vocabulary: int

    @property
    def head_width(self) -> int:
        """Numbers in one head."""
        return self.width // self.heads

    def cache_bytes(self, positions: int) -> int:
        """Memory of the keys and values of one sequence, in float32."""
        return 2 * self.layers * self.kv_heads * positions * self.head_width * 4


def read_weights(path: Path) -> tuple[LlamaSizes, Mapping[str, Array]]:
    """Sizes and dequantised weights of the model in `path`.

    Query and key rows come in the order of half-split rotary embedding; llama-type files interleave them.

    Raises:
        UnknownArchitecture: It is neither of the Llama nor of the Qwen2 family.
    """
    reader = gguf.GGUFReader(str(path))
    architecture = str(reader.fields["general.architecture"].contents())
    if architecture not in ("llama", "qwen2"):
        raise UnknownArchitecture(f"{path.name}: architecture {architecture!r}; this backend runs llama and qwen2")

    def of(key: str) -> Any:
        return reader.fields[f"{architecture}.{key}"].contents()

    weights = {one.name: _dequantised(one) for one in reader.tensors}
    sizes = LlamaSizes(
        layers=int(of("block_count")),
        width=int(of("embedding_length")),
        heads=int(of("attention.head_count")),
        kv_heads=int(of("attention.head_count_kv")),
        rope_base=float(of("rope.freq_base")),
        epsilon=float(of("attention.layer_norm_rms_epsilon")),
        vocabulary=int(weights["token_embd.weight"].shape[0]),
    )
    if architecture == "llama":
        for layer in range(sizes.layers):
            for name, heads in (("attn_q", sizes.heads), ("attn_k", sizes.kv_heads)):
                key = f"blk.{layer}.{name}.weight"
                weights[key] = _half_split(weights[key], heads)
    return sizes, weights


def _dequantised(tensor: Any) -> Array:
    shape = [int(size) for size in tensor.shape[::-1]]
    return np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape))


def _half_split(rows: Array, heads: int) -> Array:
    out, width = rows.shape
    return np.ascontiguousarray(rows.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width))
