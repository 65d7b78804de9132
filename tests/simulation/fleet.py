"""Many seeds over the cores of this machine, reported in the order in which they were asked for."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import FrameType
from typing import Final, TypeVar

from tests.simulation.run import Report, run_seed

_REAL_SECONDS: Final = 120
_FRAMES: Final = 6

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def over_cores(work: Callable[[_Item], _Result], items: Sequence[_Item], *, jobs: int) -> Iterator[_Result]:
    """Does the work for each item, in so many processes, and yields the results in the order of the items.

    Args:
        work: A function of a module, or a `partial` of one.
        items: What it is done for.
        jobs: Processes; with 1 it is done here.
    """
    gc.collect()
    gc.freeze()  # what is loaded by now never dies
    gc.disable()  # every run collects once, at its end
    _watch()
    if jobs == 1 or len(items) == 1:
        yield from map(work, items)
        return
    # Forked: nothing is imported again, and what is patched here is patched there.
    pool = ProcessPoolExecutor(
        min(jobs, len(items)), mp_context=multiprocessing.get_context("fork"), initializer=_watch
    )
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def run_seeds(
    seeds: Sequence[int], kinds: Sequence[str] | None, *, jobs: int, twice: Callable[[int], bool]
) -> Iterator[Report]:
    """Runs seeds.

    Args:
        seeds: Which.
        kinds: See `run_seed`.
        jobs: See `over_cores`.
        twice: Whether a seed is run twice, to see that it does the same.
    """
    again = frozenset(filter(twice, seeds))
    return over_cores(partial(bounded, kinds=kinds, twice=again), seeds, jobs=jobs)


def bounded(seed: int, *, kinds: Sequence[str] | None = None, twice: Iterable[int] = ()) -> Report:
    """One seed, with a bound on its real time; whatever breaks is a violation. The report comes without its trace."""
    report = _one(seed, kinds)
    if seed in twice:
        _compare(report, _one(seed, kinds))
    report.trace = []
    return report


def total(reports: Iterable[Report]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Faults, outcomes and counts of all."""
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
        outcomes.update(report.outcomes)
        counts.update(report.counts)
    return faults, outcomes, counts


def _one(seed: int, kinds: Sequence[str] | None) -> Report:
    signal.alarm(_REAL_SECONDS)
    try:
        return run_seed(seed, kinds)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
        where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        return Report(seed, violations=[f"the run failed: {type(error).__name__}: {error} ({where})"])
    finally:
        signal.alarm(0)


def _watch() -> None:
    signal.signal(signal.SIGALRM, _too_long)


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise RuntimeError(f"the run takes more than {_REAL_SECONDS} seconds of real time")


def _compare(first: Report, second: Report) -> None:
    if first.digest == second.digest:
        return
    pairs = enumerate(zip(first.trace, second.trace, strict=False))
    place = next((f"{number}: {one} / {other}" for number, (one, other) in pairs if one != other), "its length")
    first.violations.append(f"8: the same seed ran in two ways; the first difference is {place}")
