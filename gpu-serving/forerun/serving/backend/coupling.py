"""Target and draft of the repository, asked through the server in its own process (business logic scripting)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from forerun.serving.backend.loop import Verdict
from forerun.serving.backend.sequences import Refused

_START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
_END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END


class PassFailed(Exception):
    """The server or a model failed in the middle of a text. The message is theirs."""


def text_of(tensor: Any) -> str:
    """The one string of a tensor."""
    return str(tensor.as_numpy().reshape(-1)[0].decode())


class _Asked:
    """One sequence of a stateful model.

    Args:
        model: Its name in the repository.
        sequence: Its id.
        options: JSON for its first request.
    """

    def __init__(self, model: str, sequence: int, options: str) -> None:
        self._model = model
        self._sequence = sequence
        self._options = np.array([[options]], dtype=np.object_)
        self._open = False

    async def ask(self, tokens: Sequence[int], control: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
        """One pass: tokens and report.

        Raises:
            Refused: The model says why it does not.
            PassFailed: See there.
        """
        flags, self._open = 0 if self._open else _START, True
        response = await self._send(tokens, control, flags)
        if response.has_error():
            message = str(response.error().message())
            _, said, reason = message.partition("refused: ")
            raise Refused(reason) if said else PassFailed(message)
        found = pb_utils.get_output_tensor_by_name(response, "TOKENS").as_numpy().reshape(-1)
        report = json.loads(text_of(pb_utils.get_output_tensor_by_name(response, "REPORT")))
        return [int(one) for one in found], report

    async def close(self) -> None:
        """Ends the sequence. Its model drops it later where that fails."""
        if self._open:
            self._open = False
            await self._send([-1], [0, 0, 0], _END)

    async def _send(self, tokens: Sequence[int], control: Sequence[int], flags: int) -> Any:
        inputs = [
            pb_utils.Tensor("TOKENS", np.array([tokens], np.int32)),
            pb_utils.Tensor("CONTROL", np.array([control], np.int32)),
        ]
        if flags == _START:
            inputs.append(pb_utils.Tensor("OPTIONS", self._options))
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            requested_output_names=["TOKENS", "REPORT"],
            inputs=inputs,
            correlation_id=self._sequence,
            flags=flags,
        )
        return await request.async_exec()


class ServedTarget:
    """A target's sequence, as the loop wants it. Arguments: as those of `_Asked`."""

    def __init__(self, model: str, sequence: int, options: str) -> None:
        self._asked = _Asked(model, sequence, options)

    async def start(self, prompt: Sequence[int], live: int) -> Verdict:
        """Feeds the prompt; the first token."""
        return _verdict(*await self._asked.ask(prompt, [0, 0, live]))

    async def verify(
        self, keep: int, last: int, drafted: Sequence[int], live: int, parents: Sequence[int] | None = None
    ) -> Verdict:
        """Verifies what was drafted to follow `last`."""
        control = [keep, len(drafted), live, *(parents or ())]
        return _verdict(*await self._asked.ask([last, *drafted], control))

    async def close(self) -> None:
        """Frees its slot."""
        await self._asked.close()


class ServedDraft:
    """A draft model's sequence. Arguments: as those of `_Asked`."""

    def __init__(self, model: str, sequence: int, options: str) -> None:
        self._asked = _Asked(model, sequence, options)

    async def draft(self, keep: int, tokens: Sequence[int], count: int, live: int) -> tuple[list[int], float]:
        """Goes on after `keep` tokens with `tokens`: so many that may follow, and the seconds it took."""
        found, report = await self._asked.ask(tokens, [keep, count, live])
        return found, float(report["seconds"])

    async def close(self) -> None:
        """Frees its slot."""
        await self._asked.close()


def _verdict(tokens: list[int], report: dict[str, Any]) -> Verdict:
    return Verdict(tokens, report["accepted"], report["seconds"], report.get("logprobs"))
