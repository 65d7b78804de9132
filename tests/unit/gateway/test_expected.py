"""What a predictor says becomes drafts where it is a call, and nothing where it is none: no request fails by it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.core.grammar.calls import call_text
from forerun.gateway.expected import ExpectedCalls
from forerun.v1 import common_pb2, prediction_pb2


class Channel:
    """Answers what it was given, as a replica would."""

    def __init__(self, *arguments: bytes) -> None:
        self._candidates = prediction_pb2.Candidates(
            candidates=[
                prediction_pb2.Candidate(action=common_pb2.Action(tool="f", arguments=one), probability=0.5)
                for one in arguments
            ]
        )

    def unary_unary(self, *_: Any, **__: Any) -> Any:
        async def answer(request: prediction_pb2.PredictRequest, timeout: float) -> prediction_pb2.PredictResponse:
            return prediction_pb2.PredictResponse(candidates=self._candidates)

        return answer

    unary_stream = stream_unary = stream_stream = unary_unary


class Network:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def channel(self, target: str) -> Channel:
        return self._channel


@pytest.mark.parametrize("odd", [b"[1]", b"3", b"{", b"", json.dumps({"a": "x" * 9_000}).encode()])
async def test_what_is_no_call_that_a_model_would_write_is_left_out(odd: bytes) -> None:
    expected = ExpectedCalls(Network(Channel(odd, b'{"b":1,"a":2}')), ["one"], 1.0)  # type: ignore[arg-type]
    schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "f", "parameters": schema}},
        {"function": 3},
        {},
    ]
    assert await expected.of("t", "s", tools) == (call_text("f", '{"a":2,"b":1}'),)
