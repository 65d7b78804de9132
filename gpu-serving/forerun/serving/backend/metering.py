"""What the loop counts, exported beside the server's own metrics.

Acceptance has one definition everywhere: accepted draft tokens divided by proposed draft tokens, where proposed means
that the target verified them. Goodput is generated tokens divided by seconds of passes. Only counters of numerators and
denominators are exported, never ratios; all exist at 0 from the start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol


class Sample(Protocol):
    """One time series of the server."""

    def increment(self, value: float) -> None:
        """Adds to it."""
        ...

    def set(self, value: float) -> None:
        """Sets it, where it is a gauge."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """A metric.

    Attributes:
        name: With its unit.
        help: One sentence.
        gauge: Otherwise it is a counter.
        label: Name of its label; empty for none.
    """

    name: str
    help: str
    gauge: bool = False
    label: str = ""


PROPOSED: Final = Family(
    "forerun_draft_tokens_proposed_total", "Draft tokens that the target verified", label="drafter"
)
ACCEPTED: Final = Family(
    "forerun_draft_tokens_accepted_total", "Draft tokens that the target accepted", label="drafter"
)
PASSES: Final = Family(
    "forerun_target_passes_total", "Verifying and decoding passes of the target, by drafted tokens", label="depth"
)
TOKENS: Final = Family("forerun_generated_tokens_total", "Tokens of answers")
PASS_SECONDS: Final = Family("forerun_pass_seconds_total", "Seconds of passes and drafts, summed over texts")
REQUESTS: Final = Family("forerun_generations_total", "Generations by how they ended", label="end")
SLOTS: Final = Family("forerun_decoding_slots_used", "Texts that are decoded now", gauge=True)
QUEUE: Final = Family("forerun_decoding_queue_length", "Requests that wait for a slot", gauge=True)
CEILING: Final = Family(
    "forerun_draft_depth_ceiling",
    "Tokens that may be drafted for a text in a pass, at most, for tenants not off",
    gauge=True,
)
CEILING_SOURCE: Final = Family(
    "forerun_draft_depth_ceiling_source",
    "1 for who says how deep drafts may be, 0 for all others",
    gauge=True,
    label="source",
)
FAMILIES: Final = (PROPOSED, ACCEPTED, PASSES, TOKENS, PASS_SECONDS, REQUESTS, SLOTS, QUEUE, CEILING, CEILING_SOURCE)

FLUSH_SECONDS: Final = 0.25
"""Counters are at most so far behind while passes come."""

ENDS: Final = ("stop", "length", "cancelled", "refused", "failed")


class Meter:
    """Writes the metrics.

    Increments take one lock: two at once abort the whole server. Each is a call to the server's own process, and a pass
    has five, so counters are summed up here and handed over a few times a second, and when a text ends.

    Args:
        make: Makes the time series of a family with these labels.
        values: Label values of families that have a label; others are counted as the last of them.
        now: Seconds, never going backwards.
    """

    def __init__(
        self,
        make: Callable[[Family, Mapping[str, str]], Sample],
        values: Mapping[Family, Sequence[str]],
        now: Callable[[], float],
    ) -> None:
        self._lock = threading.Lock()
        self._now = now
        self._flushed_at = now()
        self._sums: dict[tuple[Family, str], float] = {}
        self._values = {family: list(known) for family, known in values.items()}
        self._samples = {
            (family, value): make(family, {family.label: value} if family.label else {})
            for family in FAMILIES
            for value in (self._values[family] if family.label else [""])
        }

    def add(self, family: Family, value: float = 1.0, label: str = "") -> None:
        """Adds to a counter."""
        if not value:
            return
        if family.label and label not in self._values[family]:
            label = self._values[family][-1]
        with self._lock:
            self._sums[family, label] = self._sums.get((family, label), 0.0) + value
        if self._now() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hands over what was added."""
        with self._lock:
            self._flushed_at = self._now()
            for key, value in self._sums.items():
                self._samples[key].increment(value)
            self._sums.clear()

    def set(self, family: Family, value: float, label: str = "") -> None:
        """Sets a gauge."""
        with self._lock:
            self._samples[family, label].set(value)
