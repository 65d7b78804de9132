"""A real small causal language model on CPU, with a cache for each sequence, exact under verification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import openvino as ov

from forerun.serving.backend.llama_graph import MASKED, build
from forerun.serving.backend.llama_weights import Array, LlamaSizes, read_weights

PASS_ROWS: Final = 8
"""Rows of every decoding and verifying pass. On the CPUs that were measured eight cost what one costs."""

PROMPT_ROWS: Final = 64
"""Rows of a pass over a full block of the prompt, with speculation and without it."""


class LlamaModel:
    """Weights and compiled graphs, shared by all sequences.

    Args:
        path: GGUF file.
        positions: Of each sequence's cache; a text, its prompt and what is drafted have to fit.
        threads: Of OpenVINO.
        int8: Weights as 8-bit integers: a third of the memory, other scores. For drafts.
    """

    def __init__(self, path: Path, *, positions: int, threads: int, int8: bool = False) -> None:
        self.sizes, weights = read_weights(path)
        self.positions = positions
        self.pass_rows = PASS_ROWS
        self.limit = positions - PASS_ROWS
        core = ov.Core()
        hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._compiled = {
            rows: core.compile_model(
                build(self.sizes, weights, rows=rows, positions=positions, int8=int8), "CPU", hints
            )
            for rows in (PASS_ROWS, PROMPT_ROWS)
        }
        self.requests = {rows: one.create_infer_request() for rows, one in self._compiled.items()}
        self.cos, self.sin = _rotary_tables(self.sizes, positions)

    def session(self) -> LlamaSession:
        """A new sequence."""
        return LlamaSession(self)


class LlamaSession:
    """One sequence.

    Sessions of one model take turns: a pass fills the model's infer request and reads it before the next one starts.

    Args:
        model: Its model.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.limit = model.limit
        self.length = 0
        sizes = model.sizes
        self._cache = np.zeros((2 * sizes.layers, sizes.kv_heads, model.positions, sizes.head_width), np.float32)

    def keep(self, count: int) -> None:
        """Forgets everything after the first `count` tokens: their rows are overwritten before they are read again."""
        self.length = min(self.length, count)

    def feed(self, tokens: Sequence[int], wanted: int) -> list[Array]:
        """Feeds tokens and gives the scores after each of the last `wanted` ones."""
        scores: list[Array] = []
        left = len(tokens)
        while left:
            # A pass has to end at a wanted row or before the first one, so that both ways of feeding a prompt agree.
            rows = PROMPT_ROWS if left - wanted >= PROMPT_ROWS else PASS_ROWS
            taken = min(rows, left)
            start = len(tokens) - left
            left -= taken
            scores += self._pass(tokens[start : start + taken], rows, min(taken, max(0, wanted - left)))
        return scores

    def _pass(self, tokens: Sequence[int], rows: int, wanted: int) -> list[Array]:
        model, first, count = self._model, self.length, len(tokens)
        ids = np.zeros((1, rows), np.int64)
        ids[0, :count] = tokens
        places = np.arange(first, first + rows)
        seen = np.arange(model.positions)[None] <= places[:, None]
        group = model.sizes.heads // model.sizes.kv_heads
        mask = np.tile(np.where(seen, np.float32(0), np.float32(MASKED)), (group, 1))[None, None]
        inputs = {0: ids, 1: model.cos[places], 2: model.sin[places], 3: mask, 4: self._cache, 5: places}
        request = model.requests[rows]
        request.infer(inputs, share_inputs=True)
        self._cache[:, :, first : first + count] = request.get_output_tensor(1).data[:, :, :count]
        self.length += count
        # The request's memory is used again by the next pass.
        return list(request.get_output_tensor(0).data[0, count - wanted : count].copy()) if wanted else []


def _rotary_tables(sizes: LlamaSizes, positions: int) -> tuple[Array, Array]:
    inverse = 1.0 / (sizes.rope_base ** (np.arange(0, sizes.head_width, 2, dtype=np.float64) / sizes.head_width))
    angles = np.outer(np.arange(positions), inverse)
    angles = np.concatenate([angles, angles], -1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
