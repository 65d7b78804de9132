"""`make bench-capacity`: the capacity function on the recorded arrivals in DATA; everything in virtual time."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from forerun.core.capacity import Rules
from tests.bench.capacity.arrivals import FILES, recorded
from tests.bench.capacity.figures import (
    LOADS,
    changes_under_swing,
    harm,
    longest_behind,
    quantile,
    scaled,
    seconds_to_follow,
)
from tests.bench.results import Row, write

_LEVELS = (1, 2, 3, 5, 8, 10, 15, 20, 30, 50, 80, 100, 150, 200, 300, 500, 1_000)
_PERIODS = (5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 300.0, 600.0, 900.0)
_STEPS = ((0, 10), (5, 20), (20, 60), (100, 200))
_PHASES = (0.0, math.pi / 2, math.pi, 3 * math.pi / 2)


def main() -> int:
    """Prints and writes the figures; 1 where one is missed."""
    directory = Path(os.environ.get("DATA", "../shared/data")) / "arrivals"
    if not directory.is_dir():
        print(f"the recorded arrivals are not in {directory}; set DATA to the folder that holds arrivals/")
        return 3
    rows, missed = _calm()
    for name in FILES:
        more, also = _recorded(directory, name)
        rows += more
        missed += also
    for row in rows:
        base = "" if row.baseline is None else f" (without {row.baseline:.3f})"
        value = "unknown" if row.value is None else f"{row.value:.3f}"
        print(f"{row.name:44s} {value} {row.unit}{base}", *(f"{k}={v}" for k, v in row.more.items()))
    print(*(f"missed: {one}" for one in missed), sep="\n", end="\n" if missed else "")
    print(write("capacity", rows))
    return 1 if missed else 0


def _calm() -> tuple[list[Row], list[str]]:
    swings = [
        changes_under_swing(level, period, phase, fixed=fixed)
        for level in _LEVELS for period in _PERIODS for phase in _PHASES for fixed in (True, False)
    ]  # fmt: skip
    follow = {
        way: max(seconds_to_follow(low, high, rising=way == "rise") for low, high in _STEPS) for way in ("rise", "fall")
    }
    rows = [Row(name="changes in 15 min, 10 % swing, most", value=max(swings), unit="changes", n=len(swings))]
    rows += [Row(name=f"slots follow a {way}", value=value, unit="s", n=4) for way, value in follow.items()]
    missed = ["changes"] if max(swings) > 2 else []
    return rows, missed + [f"follow a {way}" for way, value in follow.items() if value > 15]


def _recorded(directory: Path, name: str) -> tuple[list[Row], list[str]]:
    arrivals = recorded(directory, name)
    rows, missed = [], []
    for load in LOADS:
        found = harm(arrivals, load)
        rows.append(
            Row(
                name=f"{name}: queue p99 at load {load}",
                value=found.p99_with,
                unit="s",
                baseline=found.p99_without,
                n=found.waits,
                more={"slots": found.slots, "speculative_share": round(found.speculative_share, 3)},
            )
        )
        if not found.holds:
            missed.append(f"{name} at load {load}: {found.p99_without:.3f} -> {found.p99_with:.3f} s")
    alone, beside = scaled(arrivals, speculation=False), scaled(arrivals, speculation=True)
    p99_alone, p99_beside = quantile(alone.waits, 0.99), quantile(beside.waits, 0.99)
    behind = longest_behind(beside, Rules(speculative_slots_max=100))
    rows += [
        Row(
            name=f"{name}: queue p99, pool follows", value=p99_beside, unit="s", baseline=p99_alone,
            n=len(beside.waits), more={"replica_hours": round(beside.replica_seconds / 3600, 1),
                                       "without": round(alone.replica_seconds / 3600, 1)},
        ),
        Row(name=f"{name}: changes of replicas an hour", value=float(len(beside.replicas)), unit="changes"),
        Row(name=f"{name}: changes of slots an hour", value=float(len(beside.grants)), unit="changes"),
        Row(name=f"{name}: slots behind demand, longest", value=behind, unit="s", n=len(beside.demands)),
    ]  # fmt: skip
    if p99_beside > p99_alone * 1.02:
        missed.append(f"{name}, pool follows: {p99_alone:.3f} -> {p99_beside:.3f} s")
    if behind > 15:
        missed.append(f"{name}: slots were {behind:.0f} s behind")
    return rows, missed


if __name__ == "__main__":
    sys.exit(main())
