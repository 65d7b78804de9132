"""The smallest real inference of each model of a repository: what tells whether it answers.

Readiness as the server reports it is no evidence: the process of a model can be dead while the server says ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forerun.runtime.errors import DeadlineExceeded, ErrorReason, ForerunError, NotFound, ResourceExhausted
from forerun.runtime.kserve import Inference, KServeClient, SequenceStep, StreamBounds, Tensor, backend_died
from forerun.serving.backend.passes import PASS, Asked
from forerun.serving.render.coupled import CHAT, SERVED
from forerun.serving.render.repository import Files

_SEQUENCE: Final = (1 << 62) + 1
"""Sequence of probes: far above those that loops count up."""


class Health(StrEnum):
    """What a probe found."""

    ANSWERS = "answers"
    """It gave a result: everything it needs works."""
    BUSY = "busy"
    """It had no slot or no place in its queue in time: it works, and has too much to do."""
    DEAD = "dead"
    """Its process is gone. Only loading it anew helps."""
    HUNG = "hung"
    """It neither answers nor gets on with what it has. Only another process helps."""
    ABSENT = "absent"
    """It is not loaded."""
    FAILS = "fails"
    """It answers with an error."""

    @property
    def serves(self) -> bool:
        """Requests are answered, if not at once."""
        return self in (Health.ANSWERS, Health.BUSY)


LOADED_ANEW: Final = (Health.DEAD, Health.HUNG, Health.ABSENT)
"""Of these, loading heals."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a model.

    Attributes:
        model: Its name.
        health: What was found.
        reason: In words, where it does not answer.
    """

    model: str
    health: Health
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """How a model is asked.

    Attributes:
        inference: What for.
        streams: It answers with a stream.
    """

    inference: Inference
    streams: bool = False

    async def probe(self, client: KServeClient, seconds: float) -> Probe:
        """Asks, and reads the answer to its end.

        Args:
            client: Asks the server.
            seconds: Until it counts as busy.
        """
        try:
            if self.streams:
                async for _ in client.stream(self.inference, StreamBounds(first_seconds=seconds)):
                    pass
            else:
                await client.infer(self.inference, seconds=seconds)
        except ForerunError as error:
            return Probe(self.inference.model, _health(error), error.message)
        return Probe(self.inference.model, Health.ANSWERS)


def asks_of(files: Files) -> dict[str, Ask]:
    """How each model of a rendered repository is asked."""
    models = sorted({name.partition("/")[0] for name in files})
    return {model: _ask(model, files) for model in models}


def _ask(model: str, files: Files) -> Ask:
    if model == SERVED:
        options = b'{"max_tokens": 1, "speculate": false}'
        return Ask(_asked(model, Tensor("PROMPT", "INT32", [1]), Tensor("OPTIONS", "BYTES", [options])), streams=True)
    if model == CHAT:
        request = b'{"messages": [{"role": "user", "content": "probe"}]}'
        return Ask(_asked(model, Tensor("REQUEST", "BYTES", [request])))
    text = Tensor("text_input", "BYTES", [b"probe"])
    if f"{model}/1/model.json" in files:  # vLLM
        return Ask(_asked(model, text, Tensor("sampling_parameters", "BYTES", [b'{"max_tokens": 1}'])), streams=True)
    if f"{model}/1/model.yaml" in files:  # TensorRT-LLM
        return Ask(_asked(model, text, Tensor("sampling_param_max_tokens", "INT32", [1])), streams=True)
    numbers = Asked([1], keep=0, drafted=0, live=1).numbers()
    return Ask(
        _asked(
            model,
            Tensor(PASS, "INT32", numbers, (1, len(numbers))),
            Tensor("OPTIONS", "BYTES", [b"{}"], (1, 1)),
            sequence=SequenceStep(_SEQUENCE, start=True, end=True),
        )
    )


def _asked(model: str, *inputs: Tensor, sequence: SequenceStep | None = None) -> Inference:
    return Inference(model=model, inputs=inputs, id="probe", sequence=sequence)


def _health(error: ForerunError) -> Health:
    if backend_died(error):
        return Health.DEAD
    if isinstance(error, NotFound) or "is not ready" in error.message or "no available versions" in error.message:
        return Health.ABSENT
    if isinstance(error, DeadlineExceeded | ResourceExhausted) or error.reason is ErrorReason.QUEUE_FULL:
        return Health.BUSY
    return Health.FAILS
