"""What is known of call keys: which calls the journal has, and how the answered ones were answered."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from forerun.core import limits
from forerun.core.session.call import Closed
from forerun.core.session.context import Context
from forerun.core.session.events import CallsAsked
from forerun.core.session.model import AskedCall, CallId

_TURNS_REMEMBERED = 2
_EVENT_BYTES = limits.BUS_MESSAGE_BYTES // 2


class CallKeys:
    """Keys of one session.

    Attributes:
        answered: Calls that were answered, by key. Those that must not run again are never forgotten.
    """

    def __init__(self, context: Context) -> None:
        self._c = context
        self._journalled: set[CallId] = set()
        self.answered: dict[CallId, Closed] = {}

    def restore(self, last_turn: int, answered: Mapping[CallId, Closed], journalled: Iterable[CallId]) -> None:
        """Takes what the journal says."""
        self.answered = dict(answered)
        self._journalled = set(journalled)
        self.forget(last_turn)

    def journalled(self, call: CallId) -> bool:
        """The journal has this call: it was asked for before, perhaps of an earlier owner."""
        return call in self._journalled

    def answered_of(self, turn: int) -> tuple[int, ...]:
        """The answered calls of a message, in the order of their answers, which is that of the journal."""
        return tuple(index for number, index in self.answered if number == turn)

    def write_down(self, turn: int, asked: Sequence[AskedCall]) -> None:
        """Puts calls into the journal that are not there yet, in events that fit into one message of the bus."""
        part: list[AskedCall] = []
        size = 0
        for one in asked:
            if (turn, one.index) in self._journalled:
                continue
            self._journalled.add((turn, one.index))
            if part and size + len(one.arguments) > _EVENT_BYTES:
                self._c.append(CallsAsked(turn, tuple(part)))
                part, size = [], 0
            part.append(one)
            size += len(one.arguments)
        if part:
            self._c.append(CallsAsked(turn, tuple(part)))

    def forget(self, turn: int) -> None:
        """Forgets answers of older messages, but never those of calls that must not run again.

        These lose their content where the journal has put it into the object store.
        """
        self.answered = {
            key: one if turn - key[0] < _TURNS_REMEMBERED else _without_content(one)
            for key, one in self.answered.items()
            if turn - key[0] < _TURNS_REMEMBERED or not one.repeatable
        }
        self._journalled = {key for key in self._journalled if turn - key[0] < _TURNS_REMEMBERED}


def _without_content(one: Closed) -> Closed:
    result = one.answer.result
    if result is None or len(result.content) <= limits.INLINE_OBSERVATION_BYTES:
        return one
    stored = replace(result, content=b"", stored_bytes=len(result.content))
    return replace(one, answer=replace(one.answer, result=stored))
