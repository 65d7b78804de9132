"""Counters of the loop are summed up and handed over to the server a few times a second."""

from __future__ import annotations

from collections.abc import Mapping

from forerun.serving.backend import metering
from forerun.serving.backend.metering import FLUSH_SECONDS, Family, Meter


class Recorded:
    """One time series: every call it got."""

    def __init__(self) -> None:
        self.increments: list[float] = []
        self.value = 0.0

    def increment(self, value: float) -> None:
        self.increments.append(value)

    def set(self, value: float) -> None:
        self.value = value


def meter(now: list[float]) -> tuple[Meter, dict[tuple[str, str], Recorded]]:
    samples: dict[tuple[str, str], Recorded] = {}

    def make(family: Family, labels: Mapping[str, str]) -> Recorded:
        return samples.setdefault((family.name, labels.get(family.label, "")), Recorded())

    values = {
        metering.PROPOSED: ["recall", "other"],
        metering.ACCEPTED: ["recall", "other"],
        metering.PASSES: ["0", "1"],
        metering.REQUESTS: metering.ENDS,
        metering.CEILING_SOURCE: ["profile", "pool"],
    }
    return Meter(make, values, lambda: now[0]), samples


def test_counters_are_handed_over_together_and_lose_nothing() -> None:
    now = [0.0]
    counted, samples = meter(now)
    for _ in range(10):
        counted.add(metering.TOKENS, 3)
        counted.add(metering.PASSES, label="1")
    tokens, passes = samples[metering.TOKENS.name, ""], samples[metering.PASSES.name, "1"]
    assert tokens.increments == []
    now[0] = FLUSH_SECONDS
    counted.add(metering.TOKENS, 3)
    assert (tokens.increments, passes.increments) == ([33.0], [10.0])
    counted.add(metering.TOKENS, 1)
    counted.flush()
    counted.flush()
    assert (tokens.increments, passes.increments) == ([33.0, 1.0], [10.0])


def test_labels_that_are_not_known_count_as_the_last() -> None:
    counted, samples = meter([0.0])
    counted.add(metering.PROPOSED, 2, "recall")
    counted.add(metering.PROPOSED, 5, "somebody")
    counted.flush()
    assert samples[metering.PROPOSED.name, "recall"].increments == [2.0]
    assert samples[metering.PROPOSED.name, "other"].increments == [5.0]


def test_gauges_are_set_at_once() -> None:
    counted, samples = meter([0.0])
    counted.set(metering.SLOTS, 4)
    assert samples[metering.SLOTS.name, ""].value == 4
