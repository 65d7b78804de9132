"""`python -m tests.simulation --seed 1 --seeds 200`: runs seeds and says what was found."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter

from forerun.core.outcomes import Outcome
from tests.simulation.fleet import run_seeds, total
from tests.simulation.nemesis import KINDS
from tests.simulation.run import Report

_TWICE_EVERY = 10
_PROGRESS_SECONDS = 60.0


def main() -> int:
    """Runs the seeds; 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; as many as cores by default")
    parser.add_argument("--faults", default=None, help=f"kinds with commas between them, or none: {', '.join(KINDS)}")
    parser.add_argument("--twice", action="store_true", help="run every seed twice, not only every tenth")
    parser.add_argument("--verbose", action="store_true", help="show what the services log")
    arguments = parser.parse_args()
    kinds = None if arguments.faults is None else [kind for kind in arguments.faults.split(",") if kind != "none"]
    if unknown := sorted(set(kinds or ()) - set(KINDS)):
        parser.error(f"unknown faults: {', '.join(unknown)}")
    if arguments.verbose:
        logging.basicConfig(level=logging.DEBUG)

    reports: list[Report] = []
    begun = said = time.perf_counter()
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    for report in run_seeds(
        seeds, kinds, jobs=arguments.jobs, twice=lambda seed: arguments.twice or seed % _TWICE_EVERY == 0
    ):
        reports.append(report)
        if report.violations:
            _complain(report, arguments.faults)
        if time.perf_counter() - said > _PROGRESS_SECONDS:
            said = time.perf_counter()
            print(f"{len(reports)} of {len(seeds)} seeds in {said - begun:.0f} s", file=sys.stderr)
    return _summary(reports, time.perf_counter() - begun)


def _summary(reports: list[Report], seconds: float) -> int:
    faults, outcomes, counts = total(reports)
    print(f"{len(reports)} seeds in {seconds:.1f} s, {len(reports) / seconds:.2f} per second")
    print("faults:   ", _table(faults))
    print("outcomes: ", _table(Counter({outcome.value: outcomes[outcome.value] for outcome in Outcome})))
    print("counts:   ", _table(counts))
    if missing := [outcome.value for outcome in Outcome if not outcomes[outcome.value]]:
        print("outcomes that did not occur:", ", ".join(missing))
    failed = [report.seed for report in reports if report.violations]
    if failed:
        print(f"{len(failed)} seeds failed: {', '.join(map(str, failed))}")
    return 1 if failed else 0


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
