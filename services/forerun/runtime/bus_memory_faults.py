"""Faults of the bus on demand: what a simulation injects into a `MemoryBroker`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from forerun.runtime.ids import Ids


class AppendFault(Enum):
    """What goes wrong with a durable write."""

    NONE = "none"
    REFUSED = "refused"
    """Fails at once with Unavailable; not stored."""
    LOST = "lost"
    """Times out with AppendUncertain; not stored."""
    UNACKNOWLEDGED = "unacknowledged"
    """Times out with AppendUncertain; stored."""


class Faults:
    """No faults. Subclasses decide anew for each message; `client` is the name of the `MemoryBus` concerned."""

    def core(self, client: str, subject: str) -> tuple[float, ...]:
        """When a core message reaches one listener: a delay in seconds for each copy; () loses it."""
        return (0.0,)

    def append(self, client: str, subject: str) -> AppendFault:
        """What happens to a durable write: an append, or a change of a key (its subject is `$KV.<bucket>.<key>`)."""
        return AppendFault.NONE

    def delivery_lost(self, client: str, stream: str) -> bool:
        """Whether a delivery to a consumer gets lost on the way; the broker repeats it after ack_wait."""
        return False

    def verdict_lost(self, client: str, stream: str) -> bool:
        """Whether what a consumer says of a delivery gets lost; a message that was handled is then delivered again."""
        return False


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often what goes wrong: shares between 0 and 1.

    Attributes:
        core_drop: Core messages that get lost.
        core_double: Core messages that arrive twice.
        core_delay: Copies that arrive late, and thereby out of order.
        core_delay_max_seconds: How late at most.
        append_refused: Durable writes that fail at once.
        append_lost: Durable writes that time out and are not stored.
        append_unacknowledged: Durable writes that time out and are stored.
        delivery_lost: Deliveries to consumers that get lost.
        verdict_lost: Acknowledgements and other verdicts of consumers that get lost.
    """

    core_drop: float = 0.0
    core_double: float = 0.0
    core_delay: float = 0.0
    core_delay_max_seconds: float = 1.0
    append_refused: float = 0.0
    append_lost: float = 0.0
    append_unacknowledged: float = 0.0
    delivery_lost: float = 0.0
    verdict_lost: float = 0.0


class RandomFaults(Faults):
    """Faults by chance; with `SeededIds` the same run has the same faults."""

    def __init__(self, rates: FaultRates, ids: Ids) -> None:
        self._rates = rates
        self._ids = ids

    def core(self, client: str, subject: str) -> tuple[float, ...]:
        """See `Faults`."""
        if self._happens(self._rates.core_drop):
            return ()
        copies = 2 if self._happens(self._rates.core_double) else 1
        return tuple(self._delay() for _ in range(copies))

    def append(self, client: str, subject: str) -> AppendFault:
        """See `Faults`."""
        draw = self._ids.fraction()
        for fault, rate in (
            (AppendFault.REFUSED, self._rates.append_refused),
            (AppendFault.LOST, self._rates.append_lost),
            (AppendFault.UNACKNOWLEDGED, self._rates.append_unacknowledged),
        ):
            if draw < rate:
                return fault
            draw -= rate
        return AppendFault.NONE

    def delivery_lost(self, client: str, stream: str) -> bool:
        """See `Faults`."""
        return self._happens(self._rates.delivery_lost)

    def verdict_lost(self, client: str, stream: str) -> bool:
        """See `Faults`."""
        return self._happens(self._rates.verdict_lost)

    def _delay(self) -> float:
        late = self._happens(self._rates.core_delay)
        return self._ids.fraction() * self._rates.core_delay_max_seconds if late else 0.0

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self._ids.fraction() < rate
