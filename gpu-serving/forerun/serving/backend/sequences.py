"""Sequences of a stateful model: a bounded number of slots, freed when a sequence ends or is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State")


class Refused(Exception):
    """A request cannot be served. The message reaches its sender and says what to do."""


@dataclass(slots=True)
class _Slot(Generic[State]):
    state: State
    used_at: float


class Sequences(Generic[State]):
    """Slots by sequence id.

    The server's own scheduler bounds the sequences it forwards, and forgets one that was idle too long without telling
    its model. So this keeps the same two bounds itself.

    Args:
        slots: Most sequences at a time.
        idle_seconds: A sequence that was not heard of for so long is dropped when its slot is needed.
        now: Seconds, never going backwards.
    """

    def __init__(self, slots: int, idle_seconds: float, now: Callable[[], float]) -> None:
        self._slots = slots
        self._idle_seconds = idle_seconds
        self._now = now
        self._open: dict[int, _Slot[State]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def start(self, sequence: int, make: Callable[[], State]) -> State:
        """A slot for a new sequence. One that is started again begins anew.

        Raises:
            Refused: All slots are taken.
        """
        self._open.pop(sequence, None)
        if len(self._open) >= self._slots:
            self._drop_idle()
        if len(self._open) >= self._slots:
            raise Refused(f"all {self._slots} slots are taken (slots of the profile)")
        slot = self._open[sequence] = _Slot(make(), self._now())
        return slot.state

    def find(self, sequence: int) -> State:
        """The state of an open sequence.

        Raises:
            Refused: It was never started, has ended, or was dropped.
        """
        slot = self._open.get(sequence)
        if slot is None:
            raise Refused("the sequence is not open: it has ended, was idle for too long, or the model was restarted")
        slot.used_at = self._now()
        return slot.state

    def end(self, sequence: int) -> None:
        """Frees a slot; nothing where there is none."""
        self._open.pop(sequence, None)

    def _drop_idle(self) -> None:
        oldest = self._now() - self._idle_seconds
        for sequence in [one for one, slot in self._open.items() if slot.used_at < oldest]:
            del self._open[sequence]
