"""The Triton model that clients ask: it couples target and draft through the server, and streams what they give.

One event loop in one process serves all texts. So counters have one writer, which matters: increments of this server's
metrics from two threads at once abort the whole server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from forerun.serving.backend.deciding import Options
from forerun.serving.backend.loop import Loop, Proposal, Step, Verdict
from forerun.serving.backend.sequences import Refused
from forerun.serving.backend.stopping import Stopping

_NOTHING = np.array([[-1]], np.int32)
_CANCELLED = "cancelled"


class TritonPythonModel:
    """What the Python backend starts."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Reads the settings."""
        self._settings = json.loads(json.loads(args["model_config"])["parameters"]["settings"]["string_value"])
        self._sequences = itertools.count(1)
        self._live = 0

    async def execute(self, requests: Sequence[Any]) -> None:
        """Serves requests; returns when all of them have ended."""
        await asyncio.gather(*(self._serve(one) for one in requests))

    async def _serve(self, request: Any) -> None:
        sender = request.get_response_sender()
        self._live += 1
        try:
            prompt = [int(one) for one in pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().reshape(-1)]
            options = Options.read(_text(pb_utils.get_input_tensor_by_name(request, "OPTIONS")))
            await self._stream(prompt, options, sender)
        except Refused as refused:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"refused: {refused}")))
        finally:
            self._live -= 1
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def _stream(self, prompt: list[int], options: Options, sender: Any) -> None:
        loop = Loop(
            _Target(self._settings["target_model"], next(self._sequences), options),
            _NoDraft(),
            _Fixed(options.depth or 0),
            Stopping(options, frozenset({0}), self._settings["max_output_tokens"]),
            options,
            lambda: self._live,
            self._settings["context_tokens"],
        )
        async for step in loop.run(prompt):
            if sender.is_cancelled():
                return
            sender.send(_event(step, len(prompt), loop))


def _event(step: Step, prompt: int, loop: Loop) -> Any:
    event: dict[str, Any] = {"tokens": list(step.tokens), "text": step.text}
    if step.logprobs is not None:
        event["logprobs"] = list(step.logprobs)
    if step.finish is not None:
        counts = loop.counts
        event["finish"] = step.finish
        event["usage"] = {"prompt": prompt, "passes": counts.passes, "proposed": counts.proposed,
                          "accepted": counts.accepted, "seconds": counts.seconds}  # fmt: skip
    text = np.array([json.dumps(event)], dtype=np.object_)
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("EVENT", text)])


def _text(tensor: Any) -> str:
    return str(tensor.as_numpy().reshape(-1)[0].decode())


class _Target:
    def __init__(self, model: str, sequence: int, options: Options) -> None:
        self._model = model
        self._sequence = sequence
        self._options = np.array([[json.dumps({"temperature": options.temperature})]], dtype=np.object_)
        self._open = False

    async def start(self, prompt: Sequence[int], live: int) -> Verdict:
        self._open = True
        return await self._ask(prompt, [0, 0, live], pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)

    async def verify(self, keep: int, last: int, drafted: Sequence[int], live: int) -> Verdict:
        return await self._ask([last, *drafted], [keep, len(drafted), live], 0)

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._send([-1], [0, 0, 0], pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)

    async def _ask(self, tokens: Sequence[int], control: Sequence[int], flags: int) -> Verdict:
        response = await self._send(tokens, control, flags)
        if response.has_error():
            raise Refused(response.error().message())
        found = pb_utils.get_output_tensor_by_name(response, "TOKENS").as_numpy().reshape(-1)
        report = json.loads(_text(pb_utils.get_output_tensor_by_name(response, "REPORT")))
        return Verdict([int(one) for one in found], report["accepted"], report["seconds"], report.get("logprobs"))

    async def _send(self, tokens: Sequence[int], control: Sequence[int], flags: int) -> Any:
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            requested_output_names=["TOKENS", "REPORT"],
            inputs=[
                pb_utils.Tensor("TOKENS", np.array([tokens], np.int32)),
                pb_utils.Tensor("CONTROL", np.array([control], np.int32)),
                pb_utils.Tensor("OPTIONS", self._options),
            ],
            correlation_id=self._sequence,
            flags=flags,
        )
        return await request.async_exec()


class _NoDraft:
    async def propose(self, context: Sequence[int], depth: int, live: int) -> Proposal:
        return Proposal(())

    def judged(self, proposal: Proposal, accepted: int) -> None:
        return None

    async def close(self) -> None:
        return None


class _Fixed:
    def __init__(self, depth: int) -> None:
        self._depth = depth

    def depth(self, live: int, context: int) -> int:
        return self._depth

    def passed(self, live: int, depth: int, drafted: int, accepted: int, seconds: float) -> None:
        return None
