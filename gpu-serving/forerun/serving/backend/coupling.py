"""Target and draft of the repository, asked through the server in its own process (business logic scripting)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from forerun.serving.backend.loop import Verdict
from forerun.serving.backend.passes import ANSWER, PASS, Answered, Asked
from forerun.serving.backend.sequences import Refused

_START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
_END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END

Away = Callable[[Callable[[], Any]], Any]
"""What `Turns.away` is: waits for a pass while others have their turn."""


class PassFailed(Exception):
    """The server or a model failed in the middle of a text. The message is theirs."""


def text_of(tensor: Any) -> str:
    """The one string of a tensor."""
    return str(tensor.as_numpy().reshape(-1)[0].decode())


class _Sequence:
    """One sequence of a stateful model. Its calls wait for the model.

    Args:
        model: Its name in the repository.
        sequence: Its id.
        options: JSON for its first request.
        away: See there.
    """

    def __init__(self, model: str, sequence: int, options: str, away: Away) -> None:
        self._model = model
        self._sequence = sequence
        self._options = np.array([[options]], dtype=np.object_)
        self._away = away
        self._open = False

    def ask(self, asked: Asked) -> Answered:
        """One pass.

        Raises:
            Refused: The model says why it does not.
            PassFailed: See there.
        """
        flags, self._open = 0 if self._open else _START, True
        response = self._send(asked, flags)
        if response.has_error():
            message = str(response.error().message())
            _, said, reason = message.partition("refused: ")
            raise Refused(reason) if said else PassFailed(message)
        return Answered.of(response.output_tensors()[0].as_numpy()[0].tolist())

    def close(self) -> None:
        """Ends the sequence. Its model drops it later where that fails."""
        if self._open:
            self._open = False
            self._send(Asked((), 0, 0, 0), _END)

    def _send(self, asked: Asked, flags: int) -> Any:
        inputs = [pb_utils.Tensor(PASS, np.array([asked.numbers()], np.int32))]
        if flags == _START:
            inputs.append(pb_utils.Tensor("OPTIONS", self._options))
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            requested_output_names=[ANSWER],
            inputs=inputs,
            correlation_id=self._sequence,
            flags=flags,
        )
        return self._away(request.exec)


class ServedTarget:
    """A target's sequence, as the loop wants it. Arguments: as those of `_Sequence`."""

    def __init__(self, model: str, sequence: int, options: str, away: Away) -> None:
        self._sequence = _Sequence(model, sequence, options, away)

    def start(self, prompt: Sequence[int], live: int) -> Verdict:
        """Feeds the prompt; the first token."""
        return _verdict(self._sequence.ask(Asked(prompt, 0, 0, live)))

    def verify(
        self, keep: int, last: int, drafted: Sequence[int], live: int, parents: Sequence[int] | None = None
    ) -> Verdict:
        """Verifies what was drafted to follow `last`."""
        return _verdict(self._sequence.ask(Asked([last, *drafted], keep, len(drafted), live, parents or ())))

    def close(self) -> None:
        """Frees its slot."""
        self._sequence.close()


class ServedDraft:
    """A draft model's sequence. Arguments: as those of `_Sequence`."""

    def __init__(self, model: str, sequence: int, options: str, away: Away) -> None:
        self._sequence = _Sequence(model, sequence, options, away)

    def draft(self, keep: int, tokens: Sequence[int], count: int, live: int) -> tuple[Sequence[int], float]:
        """Goes on after `keep` tokens with `tokens`: so many that may follow, and the seconds it took."""
        found = self._sequence.ask(Asked(tokens, keep, count, live))
        return found.tokens, found.seconds

    def close(self) -> None:
        """Frees its slot."""
        self._sequence.close()


def _verdict(found: Answered) -> Verdict:
    return Verdict(found.tokens, found.accepted, found.seconds, found.logprobs or None)
