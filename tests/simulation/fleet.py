"""Many seeds over the cores of this machine, reported in the order in which they were asked for."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Final, TypeVar

from tests.simulation.run import Report, run_seed

# A machine that stands still takes no processor time, and says nothing of the run.
_PROCESSOR_SECONDS: Final = 120.0
_REAL_SECONDS: Final = 3_600.0
_AGAIN_SECONDS: Final = 1.0
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
    work = partial(_frozen, work)
    if jobs == 1 or len(items) == 1:
        yield from map(work, items)
        return
    # Forked: nothing is imported again, and what is patched here is patched there.
    pool = ProcessPoolExecutor(min(jobs, len(items)), mp_context=multiprocessing.get_context("fork"))
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
    """One seed, with a bound on its time; whatever breaks is a violation. The report comes without its trace."""
    report = _one(seed, kinds)
    if seed in twice and report.trace:
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


def _frozen(work: Callable[[_Item], _Result], item: _Item) -> _Result:
    """Does the work; what is left of it (caches of libraries) is not looked through again at the end of later runs."""
    result = work(item)
    gc.freeze()
    return result


def _one(seed: int, kinds: Sequence[str] | None) -> Report:
    with _limited() as passed:
        try:
            report = run_seed(seed, kinds)
        except _TooLongError:
            report = Report(seed)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
            where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
            report = Report(seed, violations=[f"the run failed: {type(error).__name__}: {error} ({where})"])
    if not passed:
        return report
    _bury()
    # What else was found is then no more than a consequence: it ended in the middle.
    return Report(seed, violations=[f"the run failed: {passed[0]}"])


def _bury() -> None:
    """Collects what a run left that was ended in the middle: its handlers complain of it, and not in a later run."""
    logging.disable()
    try:
        gc.collect()
    finally:
        logging.disable(logging.NOTSET)


class _TooLongError(SystemExit):
    """Ends a run. No service takes it for an error of its own, to go on with, as it would any other exception."""


@contextmanager
def _limited() -> Iterator[list[str]]:
    """Ends what is inside after its time; what is yielded then says so, also where somebody has swallowed that."""
    passed: list[str] = []

    def too_long(number: int, _frame: FrameType | None) -> None:
        seconds, kind = (_PROCESSOR_SECONDS, "processor") if number == signal.SIGPROF else (_REAL_SECONDS, "real")
        passed.append(f"it takes more than {seconds:g} seconds of {kind} time")
        raise _TooLongError

    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, _PROCESSOR_SECONDS),
        signal.SIGALRM: (signal.ITIMER_REAL, _REAL_SECONDS),
    }
    before = {number: signal.signal(number, too_long) for number in timers}
    try:
        for timer, seconds in timers.values():
            signal.setitimer(timer, seconds, _AGAIN_SECONDS)
        yield passed
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _compare(first: Report, second: Report) -> None:
    if first.digest == second.digest:
        return
    pairs = enumerate(zip(first.trace, second.trace, strict=False))
    place = next((f"{number}: {one} / {other}" for number, (one, other) in pairs if one != other), "its length")
    first.violations.append(f"8: the same seed ran in two ways; the first difference is {place}")
