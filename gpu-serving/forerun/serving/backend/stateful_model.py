"""The Triton model of a target or a draft: sequences with their caches, and passes over them.

A request is one pass of one sequence (`passes`): a target verifies the drafted tokens that end its tokens and answers
with what the text goes on with, a draft feeds them and answers with so many tokens that may follow.
Verification happens here, so that only token ids travel: the scores of one token are 200 kB.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import triton_python_backend_utils as pb_utils

from forerun.core.tokens.drafts import ROOT
from forerun.serving.backend.constraint import Constraint, Grammars
from forerun.serving.backend.deciding import Decider, ModelOptions
from forerun.serving.backend.engines import TokenSequence, TreeSequence, load
from forerun.serving.backend.passes import ANSWER, PASS, Answered, Asked
from forerun.serving.backend.sequences import Refused, Sequences
from forerun.serving.backend.vocabulary import from_tokenizer, token_bytes, toy_bytes

_ALONE: Final = 1
"""Sequences that are decoded, where whoever asks does not count."""


@dataclass(slots=True)
class _Text:
    """A sequence of this model: its cache, and how the next token is decided."""

    cache: TokenSequence
    decider: Decider


@dataclass(frozen=True, slots=True)
class _Request:
    """A pass as it came, and of which sequence it is."""

    sequence: int
    start: bool
    end: bool
    numbers: list[int]
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
        read = [_read(one) for one in requests]
        started = time.perf_counter()  # how requests reach this process is not its model's time
        done: list[Answered | str] = []
        for one in read:
            try:
                done.append(self._run(one))
            except Refused as refused:
                done.append(f"refused: {refused}")
        seconds = time.perf_counter() - started
        return [_response(one, seconds) for one in done]

    def finalize(self) -> None:
        """Nothing is kept beyond the process."""

    def _run(self, one: _Request) -> Answered:
        asked = _asked(one.numbers)
        if one.end and not asked.tokens:
            self._texts.end(one.sequence)
            return Answered((), 0, 0.0)
        if one.start:
            text = self._texts.start(one.sequence, lambda: self._new(one.options, asked.tokens))
        else:
            text = self._texts.find(one.sequence)
        text.cache.keep(asked.keep)
        room = text.cache.limit - text.cache.length
        if len(asked.tokens) + (asked.drafted if self._drafts else 0) > room:
            raise Refused(f"{len(asked.tokens)} tokens do not fit into the {room} that are left (context_tokens)")
        answer = self._draft(text, asked) if self._drafts else self._verify(text, asked)
        if one.end:
            self._texts.end(one.sequence)
        return answer

    def _new(self, given: str, prompt: Sequence[int]) -> _Text:
        options = ModelOptions.read(given)
        # A draft may be anything: what may not follow is never accepted.
        constraint = None
        if options.calls and not self._drafts:
            constraint = Constraint(self._grammars.of(options.calls, options.call, options.ends))
        decider = Decider(options, self._engine, self._real, constraint)
        decider.begin(prompt)
        return _Text(self._engine.open(), decider)

    def _verify(self, text: _Text, asked: Asked) -> Answered:
        certain = len(asked.tokens) - asked.drafted
        drafted = asked.tokens[certain:]
        if not asked.parents:
            rows = text.cache.feed(asked.tokens, asked.drafted + 1)
            verdict = text.decider.decide(rows, drafted, asked.keep + certain)
        elif isinstance(text.cache, TreeSequence):
            _check_tree(drafted, asked.parents)
            rows = text.cache.feed_tree(asked.tokens[0], drafted, asked.parents)
            verdict = text.decider.decide(rows, drafted, asked.keep + certain, asked.parents)
            text.cache.accept(verdict.tokens[: verdict.accepted])
        else:
            raise Refused("this target verifies chains only")
        declared = self._engine.declared_seconds(max(_ALONE, asked.live) * (asked.drafted + 1))
        return Answered(verdict.tokens, verdict.accepted, declared or 0.0, declared is not None, verdict.logprobs or ())

    def _draft(self, text: _Text, asked: Asked) -> Answered:
        fed, found, passes = asked.tokens, list[int](), 0.0
        for _ in range(asked.drafted):
            (row,) = text.cache.feed(fed, 1)
            found.append(text.decider.propose(row, text.cache.length))
            passes += self._engine.declared_seconds(max(_ALONE, asked.live) * len(fed)) or 0.0
            fed = [found[-1]]
        return Answered(found, 0, passes, declared=passes > 0.0)


def _token_bytes(engine: Mapping[str, Any]) -> list[bytes]:
    if engine["kind"] == "toy":
        return toy_bytes(engine["vocabulary"])
    return token_bytes(from_tokenizer("model", Path(engine["tokenizer"])))


def _check_tree(drafted: Sequence[int], parents: Sequence[int]) -> None:
    if len(parents) != len(drafted) or any(not ROOT <= parent < node for node, parent in enumerate(parents)):
        raise Refused("a tree needs a parent before each drafted token")


def _read(request: Any) -> _Request:
    flags = request.flags()
    options = pb_utils.get_input_tensor_by_name(request, "OPTIONS")
    return _Request(
        sequence=int(request.correlation_id()),
        start=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        end=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        numbers=pb_utils.get_input_tensor_by_name(request, PASS).as_numpy().reshape(-1).tolist(),
        options="{}" if options is None else options.as_numpy().reshape(-1)[0].decode(),
    )


def _asked(numbers: Sequence[int]) -> Asked:
    try:
        return Asked.of(numbers)
    except ValueError as error:
        raise Refused(f"the tensor {PASS} holds no pass: {error}") from error


def _response(answer: Answered | str, seconds: float) -> Any:
    if isinstance(answer, str):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(answer))
    numbers = answer.numbers() if answer.declared else replace(answer, seconds=seconds).numbers()
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(ANSWER, np.array([numbers], np.float64))])
