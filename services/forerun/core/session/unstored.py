"""Calls of a message whose answers an owner may take with it when it is lost: they would run again."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from forerun.core.resources import ancestors
from forerun.core.session.context import Context
from forerun.core.session.effects import AwaitStored
from forerun.core.session.failures import scoped
from forerun.core.session.model import PreparedCall


@dataclass(slots=True)
class _Touched:
    """What the answered calls of one message have touched.

    Attributes:
        since: Number of the first event with one of their answers.
        latest: Number of the last one.
    """

    since: int
    latest: int = 0
    keys: set[str] = field(default_factory=set)
    above: set[str] = field(default_factory=set)


class Unstored:
    """What such calls have touched, by message, until the journal is known to have their answers.

    What may be repeated is answered before its answer is stored. Run again by the next owner, it must not see what a
    later call of its message wrote, nor write after that. What may not be repeated has an intent, which the journal
    takes after the answers before it, and not at all where one of them was lost; any other write waits for them.
    """

    def __init__(self, context: Context) -> None:
        self._c = context
        self._messages: dict[int, _Touched] = {}

    def add(self, turn: int, prepared: PreparedCall) -> None:
        """A call is answered, and its answer is what was appended to the journal last."""
        touched = self._messages.setdefault(turn, _Touched(self._c.number))
        touched.latest = self._c.number
        for key in scoped(prepared.private.depends, prepared.shared.depends):
            touched.keys.add(key)
            touched.above.update(ancestors(key))

    def next_message(self, running: Collection[int]) -> None:
        """The agent asks for something else: it has all answers of its messages but of those that still run."""
        self._messages = {turn: touched for turn, touched in self._messages.items() if turn in running}

    def since(self, turn: int, prepared: PreparedCall) -> int | None:
        """Number of the first event that has to be stored before a call begins; None where it could change nothing."""
        touched = self._messages.get(turn)
        if touched is None or not prepared.writes or not _changes(prepared, touched):
            return None
        return touched.since

    def before(self, turn: int, prepared: PreparedCall, then: Callable[[object], None]) -> bool:
        """Lets a call go on when answers that it could change are stored; False where it has none to wait for."""
        since = self.since(turn, prepared) if prepared.repeatable else None
        if since is None:
            return False
        token = self._c.token(partial(self._stored, turn, self._messages[turn].latest, then))
        self._c.emit(AwaitStored(token, since))
        return True

    def _stored(self, turn: int, latest: int, then: Callable[[object], None], stored: object) -> None:
        """Of other messages it says nothing: where an answer of one is lost, that is not asked for here."""
        touched = self._messages.get(turn)
        if stored is True and touched is not None and touched.latest == latest:
            del self._messages[turn]
        then(stored)


def _changes(prepared: PreparedCall, touched: _Touched) -> bool:
    keys = scoped(prepared.private.writes, prepared.shared.writes)
    return any(key in touched.above or not touched.keys.isdisjoint((key, *ancestors(key))) for key in keys)
