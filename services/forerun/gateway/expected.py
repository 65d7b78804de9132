"""Calls that the predictor expects next in a session, as the model would write them: one more source of drafts.

A predictor that is away, slow, or has nothing to say costs a few milliseconds and changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc

from forerun.core.grammar.calls import call_text
from forerun.runtime.network import Network
from forerun.v1 import prediction_pb2, prediction_pb2_grpc

_MOST: Final = 4
_LEAST_PROBABILITY: Final = 0.05
_MOST_BYTES: Final = 8_192


class ExpectedCalls:
    """Asks the predictor.

    Args:
        network: How it is reached.
        targets: Addresses of all its replicas; the one that follows the session answers.
        seconds: How long a request waits for it.
    """

    def __init__(self, network: Network, targets: Sequence[str], seconds: float) -> None:
        self._network = network
        self._targets = targets
        self._stubs: list[prediction_pb2_grpc.PredictionServiceStub] = []
        self._seconds = seconds

    async def of(self, tenant: str, session: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The expected calls of a session, likeliest first; none where nobody knows it.

        Args:
            tenant: Whose it is.
            session: Its id.
            tools: Tools of the request, by which the arguments are in the order in which models write them.
        """
        if not session or not self._targets:
            return ()
        if not self._stubs:  # channels belong to a running loop
            channels = map(self._network.channel, self._targets)
            self._stubs = [prediction_pb2_grpc.PredictionServiceStub(channel) for channel in channels]
        request = prediction_pb2.PredictRequest(tenant=tenant, session=session)
        answers = await asyncio.gather(*(self._ask(stub, request) for stub in self._stubs))
        orders = {name: order for name, order in map(_order, tools) if name}
        found = next((one for one in answers if one), [])
        texts = (_text(one, orders.get(one.action.tool, ())) for one in found)
        return tuple(text for text in texts if text)

    async def _ask(
        self, stub: prediction_pb2_grpc.PredictionServiceStub, request: prediction_pb2.PredictRequest
    ) -> list[prediction_pb2.Candidate]:
        try:
            response = await stub.Predict(request, timeout=self._seconds)
        except grpc.aio.AioRpcError:
            return []
        return [one for one in response.candidates.candidates if one.probability >= _LEAST_PROBABILITY][:_MOST]


def _order(tool: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "", ()
    parameters = function.get("parameters")
    declared = parameters.get("properties") if isinstance(parameters, dict) else None
    return function["name"], tuple(declared) if isinstance(declared, dict) else ()


def _text(candidate: prediction_pb2.Candidate, order: Sequence[str]) -> str:
    """The call; empty where it is none that a model would write, or too long to be a draft."""
    content = candidate.action.arguments
    try:
        arguments = json.loads(content) if len(content) <= _MOST_BYTES else None
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return ""
    ordered = {name: arguments[name] for name in order if name in arguments}
    return call_text(candidate.action.tool, json.dumps(ordered | arguments, ensure_ascii=False))
