"""Identical reads of different messages: one runs, the others wait for its end and look at the memo again.

Calls of one message share an outcome by their order. This is for the messages of an agent that asks several at a time,
and for the moment in which an execution that many wait for is lost: one of them takes over, not all.
"""

from typing import Generic, TypeVar

from forerun.core.identity import Identity

_Call = TypeVar("_Call")


class Flights(Generic[_Call]):
    """Which call of an identity runs, and who waits for it."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Identity, tuple[_Call, list[_Call]]] = {}

    def leader(self, identity: Identity) -> _Call | None:
        """The call that runs, or None."""
        flight = self._waiting.get(identity)
        return flight[0] if flight is not None else None

    def lead(self, identity: Identity, call: _Call) -> None:
        """This call runs, unless another one does already."""
        self._waiting.setdefault(identity, (call, []))

    def follow(self, identity: Identity, call: _Call) -> None:
        """This call waits for the one that runs."""
        self._waiting[identity][1].append(call)

    def ended(self, identity: Identity, call: _Call) -> list[_Call]:
        """The call has ended; who waited for it. Nobody waits for one that did not lead."""
        flight = self._waiting.get(identity)
        if flight is None or flight[0] is not call:
            return []
        del self._waiting[identity]
        return flight[1]

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
