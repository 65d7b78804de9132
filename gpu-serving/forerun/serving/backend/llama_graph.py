"""A Llama-type model as an OpenVINO graph whose every pass computes a row in the same way, whatever the other rows are.

That is what makes verification exact. A token's scores must be the same bits whether it is decoded alone or verified
among seven others, and matrix kernels do not promise that for different numbers of rows. So a pass always has the same
number of rows (padded), and new keys and values are written into the fixed cache *inside* the graph, before attention:
every key then has the same place in the sum in both cases. Padding without the latter is not enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as op

from forerun.serving.backend.llama_weights import Array, LlamaSizes

MASKED: Final = -1e30
"""Added to the score of a position that must not be seen; finite, because a row of nothing else must stay a number."""

Node = Any


def build(sizes: LlamaSizes, weights: Mapping[str, Array], *, rows: int, positions: int, int8: bool) -> ov.Model:
    """The graph for passes of exactly `rows` tokens over a cache of `positions`.

    Inputs, by index: token ids [1, rows]; cosines and sines [rows, head]; mask [1, 1, group*rows, positions]; cache
    [2*layers, kv_heads, positions, head]; row indices of the new tokens [rows]. Outputs: scores [1, rows, vocabulary];
    new keys and values [2*layers, kv_heads, rows, head].
    """
    return _Builder(sizes, weights, rows, positions, int8).build()


class _Builder:
    def __init__(self, sizes: LlamaSizes, weights: Mapping[str, Array], rows: int, positions: int, int8: bool) -> None:
        self._sizes = sizes
        self._weights = weights
        self._rows = rows
        self._positions = positions
        self._int8 = int8

    def build(self) -> ov.Model:
        sizes, rows, head = self._sizes, self._rows, self._sizes.head_width
        group = sizes.heads // sizes.kv_heads
        ids = op.parameter([1, rows], np.int64, "ids")
        self._cos = op.parameter([rows, head], np.float32, "cos")
        self._sin = op.parameter([rows, head], np.float32, "sin")
        self._mask = op.parameter([1, 1, group * rows, self._positions], np.float32, "mask")
        cache = op.parameter([2 * sizes.layers, sizes.kv_heads, self._positions, head], np.float32, "cache")
        self._places = op.parameter([rows], np.int64, "places")
        embedding = self._constant("token_embd.weight")
        cached = op.split(cache, _integers(0), 2 * sizes.layers).outputs()
        x, fresh = op.gather(embedding, ids, _integers(0)), []
        for layer in range(sizes.layers):
            x, keys, values = self._block(x, f"blk.{layer}.", cached[2 * layer], cached[2 * layer + 1])
            fresh += [keys, values]
        x = self._normalised(x, "output_norm")
        head_weights = self._constant("output.weight") if "output.weight" in self._weights else embedding
        scores = op.matmul(x, head_weights, False, True)
        parameters = [ids, self._cos, self._sin, self._mask, cache, self._places]
        return ov.Model([op.result(scores), op.result(op.concat(fresh, 0))], parameters, "llama")

    def _block(self, x: Node, name: str, keys: Node, values: Node) -> tuple[Node, Node, Node]:
        sizes = self._sizes
        h = self._normalised(x, f"{name}attn_norm")
        query = self._rotated(self._heads(self._linear(h, f"{name}attn_q"), sizes.heads))
        key = self._rotated(self._heads(self._linear(h, f"{name}attn_k"), sizes.kv_heads))
        value = self._heads(self._linear(h, f"{name}attn_v"), sizes.kv_heads)
        x = op.add(x, self._linear(self._attention(query, key, value, keys, values), f"{name}attn_output"))
        h = self._normalised(x, f"{name}ffn_norm")
        gated = op.multiply(op.swish(self._linear(h, f"{name}ffn_gate")), self._linear(h, f"{name}ffn_up"))
        return op.add(x, self._linear(gated, f"{name}ffn_down")), key, value

    def _attention(self, query: Node, key: Node, value: Node, keys: Node, values: Node) -> Node:
        sizes, head = self._sizes, self._sizes.head_width
        scaled = op.multiply(query, op.constant(np.float32(head**-0.5)))
        grouped = op.reshape(scaled, _integers([1, sizes.kv_heads, -1, head]), False)
        all_keys = op.scatter_update(keys, self._places, key, _integers(2))
        all_values = op.scatter_update(values, self._places, value, _integers(2))
        weights = op.softmax(op.add(op.matmul(grouped, all_keys, False, True), self._mask), 3)
        seen = op.reshape(op.matmul(weights, all_values, False, False), _integers([1, sizes.heads, -1, head]), False)
        return op.reshape(op.transpose(seen, _integers([0, 2, 1, 3])), _integers([1, -1, sizes.width]), False)

    def _heads(self, x: Node, heads: int) -> Node:
        split = op.reshape(x, _integers([1, -1, heads, self._sizes.head_width]), False)
        return op.transpose(split, _integers([0, 2, 1, 3]))

    def _rotated(self, x: Node) -> Node:
        first, second = op.split(x, _integers(3), 2).outputs()
        turned = op.concat([op.negative(second), first], 3)
        return op.add(op.multiply(x, self._cos), op.multiply(turned, self._sin))

    def _normalised(self, x: Node, name: str) -> Node:
        mean = op.reduce_mean(op.multiply(x, x), _integers([-1]), True)
        root = op.sqrt(op.add(mean, op.constant(np.float32(self._sizes.epsilon))))
        weights = op.constant(self._weights[f"{name}.weight"].reshape(1, 1, -1))
        return op.multiply(op.multiply(x, op.divide(op.constant(np.float32(1)), root)), weights)

    def _linear(self, x: Node, name: str) -> Node:
        y = op.matmul(x, self._constant(f"{name}.weight"), False, True)
        bias = self._weights.get(f"{name}.bias")
        return y if bias is None else op.add(y, op.constant(bias.reshape(1, 1, -1)))

    def _constant(self, name: str) -> Node:
        weights = self._weights[name]
        if not self._int8:
            return op.constant(weights)  # the precision hint converts them
        scale = (np.abs(weights).max(1, keepdims=True) / 127).astype(np.float32) + np.float32(1e-12)
        levels = np.clip(np.rint(weights / scale), -127, 127).astype(np.int8)
        return op.multiply(op.convert(op.constant(levels), "f32"), op.constant(scale))


def _integers(values: int | list[int]) -> Node:
    return op.constant(np.array(values, np.int64))
