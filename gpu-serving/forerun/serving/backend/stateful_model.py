"""The Triton model of a target or a draft: sequences with their caches, and passes over them.

A request is one pass of one sequence. `CONTROL` is [tokens of the sequence to keep, drafted tokens, sequences that are
decoded now, and for a tree the parent of each drafted token]; a target verifies the drafted tokens that end `TOKENS`
and answers with what the text goes on with, a draft feeds `TOKENS` and answers with so many tokens that may follow.
Verification happens here, so that only token ids travel: the scores of one token are 200 kB.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from forerun.core.tokens.drafts import ROOT
from forerun.serving.backend.constraint import Constraint, Grammars
from forerun.serving.backend.deciding import Decider, ModelOptions
from forerun.serving.backend.engines import TokenSequence, TreeSequence, load
from forerun.serving.backend.sequences import Refused, Sequences
from forerun.serving.backend.vocabulary import from_tokenizer, token_bytes, toy_bytes

_LIVE_WITHOUT_CONTROL = 1


@dataclass(slots=True)
class _Text:
    """A sequence of this model: its cache, and how the next token is decided."""

    cache: TokenSequence
    decider: Decider


@dataclass(frozen=True, slots=True)
class _Pass:
    """A request, as it came."""

    sequence: int
    start: bool
    end: bool
    tokens: list[int]
    keep: int
    drafted: int
    live: int
    parents: list[int] | None
    options: str


class TritonPythonModel:
    """What the Python backend starts."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Loads the model.

        Raises:
            Exception: It cannot be loaded; the server reports the message as the reason.
        """
        settings = json.loads(json.loads(args["model_config"])["parameters"]["settings"]["string_value"])
        self._drafts = settings["role"] == "draft"
        self._engine = load(settings["engine"], settings["context_tokens"])
        self._real = int(settings["tokens"])
        self._grammars = Grammars(lambda: _token_bytes(settings["engine"]))
        self._texts: Sequences[_Text] = Sequences(settings["slots"], settings["idle_seconds"], time.monotonic)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Runs the passes of a batch. One that is refused does not disturb the others."""
        started = time.perf_counter()
        passes = [_read(one) for one in requests]
        done: list[tuple[list[int], dict[str, Any]] | str] = []
        for one in passes:
            try:
                done.append(self._run(one))
            except Refused as refused:
                done.append(f"refused: {refused}")
        seconds = time.perf_counter() - started
        return [_response(one, answer, seconds, len(passes)) for one, answer in zip(passes, done, strict=True)]

    def finalize(self) -> None:
        """Nothing is kept beyond the process."""

    def _run(self, one: _Pass) -> tuple[list[int], dict[str, Any]]:
        if one.end and not one.tokens:
            self._texts.end(one.sequence)
            return [], {}
        text = self._texts.start(one.sequence, lambda: self._new(one)) if one.start else self._texts.find(one.sequence)
        text.cache.keep(one.keep)
        room = text.cache.limit - text.cache.length
        if len(one.tokens) + (one.drafted if self._drafts else 0) > room:
            raise Refused(f"{len(one.tokens)} tokens do not fit into the {room} that are left (context_tokens)")
        answer = self._draft(text, one) if self._drafts else self._verify(text, one)
        if one.end:
            self._texts.end(one.sequence)
        return answer

    def _new(self, one: _Pass) -> _Text:
        options = ModelOptions.read(one.options)
        # A draft may be anything: what may not follow is never accepted.
        constraint = None
        if options.calls and not self._drafts:
            constraint = Constraint(self._grammars.of(options.calls, options.call, options.ends))
        decider = Decider(options, self._engine, self._real, constraint)
        decider.begin(one.tokens)
        return _Text(self._engine.open(), decider)

    def _verify(self, text: _Text, one: _Pass) -> tuple[list[int], dict[str, Any]]:
        certain = len(one.tokens) - one.drafted
        drafted = one.tokens[certain:]
        if one.parents is None:
            rows = text.cache.feed(one.tokens, one.drafted + 1)
            verdict = text.decider.decide(rows, drafted, one.keep + certain)
        elif isinstance(text.cache, TreeSequence):
            _check_tree(drafted, one.parents)
            rows = text.cache.feed_tree(one.tokens[0], drafted, one.parents)
            verdict = text.decider.decide(rows, drafted, one.keep + certain, one.parents)
            text.cache.accept(verdict.tokens[: verdict.accepted])
        else:
            raise Refused("this target verifies chains only")
        report: dict[str, Any] = {"accepted": verdict.accepted}
        if verdict.logprobs is not None:
            report["logprobs"] = verdict.logprobs
        declared = self._engine.declared_seconds(one.live * (one.drafted + 1))
        return verdict.tokens, report if declared is None else {**report, **_declared(declared)}

    def _draft(self, text: _Text, one: _Pass) -> tuple[list[int], dict[str, Any]]:
        fed, found, passes = list(one.tokens), [], 0.0
        for _ in range(one.drafted):
            (row,) = text.cache.feed(fed, 1)
            found.append(text.decider.propose(row, text.cache.length))
            passes += self._engine.declared_seconds(one.live * len(fed)) or 0.0
            fed = [found[-1]]
        return found, _declared(passes) if passes else {}


def _token_bytes(engine: Mapping[str, Any]) -> list[bytes]:
    if engine["kind"] == "toy":
        return toy_bytes(engine["vocabulary"])
    return token_bytes(from_tokenizer("model", Path(engine["tokenizer"])))


def _check_tree(drafted: Sequence[int], parents: Sequence[int]) -> None:
    if len(parents) != len(drafted) or any(not ROOT <= parent < node for node, parent in enumerate(parents)):
        raise Refused("a tree needs a parent before each drafted token")


def _declared(seconds: float) -> dict[str, Any]:
    """For a report: what a toy's pass is said to take, in place of what it took."""
    return {"seconds": seconds, "declared": True}


def _read(request: Any) -> _Pass:
    flags = request.flags()
    tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS").as_numpy().reshape(-1)
    control = [int(one) for one in pb_utils.get_input_tensor_by_name(request, "CONTROL").as_numpy().reshape(-1)]
    options = pb_utils.get_input_tensor_by_name(request, "OPTIONS")
    return _Pass(
        sequence=int(request.correlation_id()),
        start=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        end=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        # A request needs a tensor with something in it; a negative token is nothing.
        tokens=[int(one) for one in tokens if one >= 0],
        keep=control[0],
        drafted=control[1],
        live=max(_LIVE_WITHOUT_CONTROL, control[2]),
        parents=control[3:] or None,
        options="{}" if options is None else options.as_numpy().reshape(-1)[0].decode(),
    )


def _response(one: _Pass, answer: tuple[list[int], dict[str, Any]] | str, seconds: float, batch: int) -> Any:
    if isinstance(answer, str):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(answer))
    tokens, report = answer
    text = json.dumps({"seconds": seconds, "batch": batch, **report})
    return pb_utils.InferenceResponse(
        output_tensors=[
            pb_utils.Tensor("TOKENS", np.array([tokens or [-1]], np.int32)),
            pb_utils.Tensor("REPORT", np.array([[text]], dtype=np.object_)),
        ]
    )
