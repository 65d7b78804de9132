"""Calls of a message whose answers an owner may take with it when it is lost: they would run again."""

from collections.abc import Callable
from functools import partial

from forerun.core.resources import ancestors
from forerun.core.session.context import Context
from forerun.core.session.effects import AwaitStored
from forerun.core.session.failures import scoped
from forerun.core.session.model import PreparedCall


class Unstored:
    """What such calls have touched, until the journal is known to have their answers.

    What may be repeated is answered before its answer is stored. Run again by the next owner, it must not see what a
    later call of its message wrote. What may not be repeated has an intent, which the journal takes after the answers
    before it; any other write waits for them.
    """

    def __init__(self, context: Context) -> None:
        self._c = context
        self._touched: set[str] = set()
        self._above: set[str] = set()
        self._answered = 0

    def add(self, prepared: PreparedCall) -> None:
        """A call was answered, and its answer went to the journal."""
        self._answered += 1
        for key in scoped(prepared.private.depends, prepared.shared.depends):
            self._touched.add(key)
            self._above.update(ancestors(key))

    def clear(self) -> None:
        """The agent has the answers: it asks for something else."""
        self._touched.clear()
        self._above.clear()

    def before(self, prepared: PreparedCall, then: Callable[[object], None]) -> bool:
        """Lets a call go on when answers that it could change are stored; False where it has none to wait for."""
        if not prepared.writes or not prepared.repeatable or not self._changes(prepared):
            return False
        self._c.emit(AwaitStored(self._c.token(partial(self._stored, self._answered, then))))
        return True

    def _stored(self, answered: int, then: Callable[[object], None], stored: object) -> None:
        if stored is True and answered == self._answered:
            self.clear()
        then(stored)

    def _changes(self, prepared: PreparedCall) -> bool:
        keys = scoped(prepared.private.writes, prepared.shared.writes)
        return any(key in self._above or not self._touched.isdisjoint((key, *ancestors(key))) for key in keys)
