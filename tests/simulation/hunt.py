"""`python -m tests.simulation.hunt`: plants bugs, one at a time, and shows that the simulation catches each."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from functools import partial

from tests.simulation.fleet import bounded, over_cores
from tests.simulation.mutants import BY_NAME, planted

_TEXT_CHARS = 110


@dataclass(frozen=True, slots=True)
class Catch:
    """What became of one planted bug.

    Attributes:
        mutant: Its name.
        seed: The seed that caught it, or None where none did.
        text: The invariant that did not hold.
        seconds: How long it took.
    """

    mutant: str
    seed: int | None
    text: str
    seconds: float


def hunt(name: str, *, first: int, seeds: int) -> Catch:
    """Runs seeds with a planted bug until one of them shows it."""
    begun = time.perf_counter()
    with planted(BY_NAME[name]):
        for seed in range(first, first + seeds):
            found = bounded(seed).violations
            if found:
                # What an invariant says, rather than a consequence that only an error in a log tells.
                text = next((one for one in found if one[:1].isdigit()), found[0])
                return Catch(name, seed, text, time.perf_counter() - begun)
    return Catch(name, None, "", time.perf_counter() - begun)


def main() -> int:
    """Hunts; 1 where a bug survived or where a seed shows something without any."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.hunt", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="this bug only; may be given again")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="within how many seeds each has to be caught")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; as many as cores by default")
    arguments = parser.parse_args()
    names = arguments.only or list(BY_NAME)
    if unknown := sorted(set(names) - set(BY_NAME)):
        parser.error(f"unknown bugs: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")

    catches: list[Catch] = []
    for catch in over_cores(partial(hunt, first=arguments.seed, seeds=arguments.seeds), names, jobs=arguments.jobs):
        catches.append(catch)
        caught = f"seed {catch.seed}" if catch.seed is not None else "SURVIVED"
        print(f"{catch.mutant:32} {caught:10} {catch.seconds:6.1f} s  {catch.text[:_TEXT_CHARS]}", flush=True)
    survivors = [catch.mutant for catch in catches if catch.seed is None]
    last = max((catch.seed for catch in catches if catch.seed is not None), default=arguments.seed)
    seeds = range(arguments.seed, last + 1)
    unclean = [report.seed for report in over_cores(bounded, seeds, jobs=arguments.jobs) if report.violations]
    print(f"{len(catches) - len(survivors)} of {len(catches)} planted bugs were caught, by seeds {seeds[0]} to {last}")
    print(f"without a planted bug {len(seeds) - len(unclean)} of these {len(seeds)} seeds are clean")
    if survivors:
        print(f"survived: {', '.join(survivors)}")
    if unclean:
        print(f"not clean: {', '.join(map(str, unclean))}")
    return 1 if survivors or unclean else 0


if __name__ == "__main__":
    sys.exit(main())
