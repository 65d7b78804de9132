"""Order within a message around writes that were told to stop: until they have, they may take effect, and read."""

from collections.abc import Iterable

from forerun.core import limits
from forerun.core.contracts import is_barrier
from forerun.core.resources import conflicts
from forerun.core.session.context import Context
from forerun.core.session.failures import scoped
from forerun.core.session.model import AskedCall, CallId, PreparedCall


def in_order(earlier: PreparedCall, later: PreparedCall) -> bool:
    """Whether two calls of one message must not run beside each other, where the first one writes."""
    return (
        is_barrier(earlier.contract)
        or is_barrier(later.contract)
        or conflicts(
            scoped(later.private.depends, later.shared.depends),
            scoped(earlier.private.writes, earlier.shared.writes),
        )
        or conflicts(
            scoped(later.private.writes, later.shared.writes),
            scoped(earlier.private.reads, earlier.shared.reads),
        )
    )


class EarlierStops:
    """Writes that an earlier owner was stopping when it was lost.

    Nobody tells this owner when they have stopped, so their messages wait as long as any owner would at most.
    """

    def __init__(self, context: Context) -> None:
        self._c = context
        self._calls: list[tuple[int, AskedCall]] = []
        self._until = 0.0

    def add(self, calls: Iterable[tuple[CallId, AskedCall]]) -> None:
        """What the journal says, at the take-over."""
        self._calls = [(turn, asked) for (turn, _), asked in calls]
        self._until = self._c.now + limits.CANCEL_SETTLE_SECONDS

    @property
    def until(self) -> float | None:
        """When nobody waits for them any more; None: nobody does."""
        return self._until if self._calls else None

    def over(self) -> bool:
        """Whether that time has come; True once."""
        if not self._calls or self._c.now < self._until:
            return False
        self._calls = []
        return True

    def hold(self, turn: int, prepared: PreparedCall) -> bool:
        """Whether one of them must not run beside a call of a message. One that cannot be prepared may do anything."""
        return self._c.now < self._until and any(
            number == turn and (not isinstance(one.prepared, PreparedCall) or in_order(one.prepared, prepared))
            for number, one in self._calls
        )
