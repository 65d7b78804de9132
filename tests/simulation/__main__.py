"""`python -m tests.simulation --seed 1 --seeds 200`: runs seeds and says what was found."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
import time
from collections import Counter
from types import FrameType

from forerun.core.outcomes import Outcome
from tests.simulation.nemesis import KINDS
from tests.simulation.run import Report, run_seed

_REAL_SECONDS = 60
_TWICE_EVERY = 10


def main() -> int:
    """Runs the seeds; 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--faults", default=None, help=f"kinds with commas between them, or none: {', '.join(KINDS)}")
    parser.add_argument("--twice", action="store_true", help="run every seed twice, not only every tenth")
    parser.add_argument("--verbose", action="store_true", help="show what the services log")
    arguments = parser.parse_args()
    kinds = None if arguments.faults is None else [kind for kind in arguments.faults.split(",") if kind != "none"]
    if unknown := sorted(set(kinds or ()) - set(KINDS)):
        parser.error(f"unknown faults: {', '.join(unknown)}")
    if arguments.verbose:
        logging.basicConfig(level=logging.DEBUG)
    signal.signal(signal.SIGALRM, _too_long)
    gc.freeze()  # what is loaded by now never dies; collecting after each run is cheap then

    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    begun = time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        report = _bounded(seed, kinds)
        if arguments.twice or seed % _TWICE_EVERY == 0:
            _compare(report, _bounded(seed, kinds))
        faults.update(report.faults)
        outcomes.update(report.outcomes)
        counts.update(report.counts)
        if report.violations:
            failed.append(seed)
            _complain(report, arguments.faults)
    seconds = time.perf_counter() - begun
    print(f"{arguments.seeds} seeds in {seconds:.1f} s, {arguments.seeds / seconds:.2f} per second")
    print("faults:   ", _table(faults))
    print("outcomes: ", _table(Counter({outcome.value: outcomes[outcome.value] for outcome in Outcome})))
    print("counts:   ", _table(counts))
    if missing := [outcome.value for outcome in Outcome if not outcomes[outcome.value]]:
        print("outcomes that did not occur:", ", ".join(missing))
    if failed:
        print(f"{len(failed)} seeds failed: {', '.join(map(str, failed))}")
    return 1 if failed else 0


def _bounded(seed: int, kinds: list[str] | None) -> Report:
    signal.alarm(_REAL_SECONDS)
    try:
        return run_seed(seed, kinds)
    finally:
        signal.alarm(0)


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise RuntimeError(f"the run takes more than {_REAL_SECONDS} seconds of real time")


def _compare(first: Report, second: Report) -> None:
    if first.digest == second.digest:
        return
    pairs = enumerate(zip(first.trace, second.trace, strict=False))
    place = next((f"{number}: {one} / {other}" for number, (one, other) in pairs if one != other), "its length")
    first.violations.append(f"8: the same seed ran in two ways; the first difference is {place}")


def _complain(report: Report, faults: str | None) -> None:
    print(f"seed {report.seed}: {len(report.violations)} violations", file=sys.stderr)
    for text in report.violations:
        print(f"  seed {report.seed}: {text}", file=sys.stderr)
    more = f" --faults {faults}" if faults is not None else ""
    print(f"  repeat it: python -m tests.simulation --seed {report.seed}{more}", file=sys.stderr)


def _table(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {counter[name]}" for name in sorted(counter)) or "none"


if __name__ == "__main__":
    sys.exit(main())
