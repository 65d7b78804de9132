"""A few dozen seeds of the simulation; `make sim SEEDS=200` runs more."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.core.outcomes import Outcome
from tests.simulation.nemesis import KINDS
from tests.simulation.run import run_seed

ROOT = Path(__file__).resolve().parents[2]
_PRINT_DIGEST = "import sys; from tests.simulation.run import run_seed; print(run_seed(int(sys.argv[1])).digest)"


@pytest.fixture(autouse=True, scope="module")
def _nothing_old_is_collected() -> Iterator[None]:
    """Every run collects garbage at its end; what other tests have left is not its business, and slow."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("seed", range(1, 15))
def test_a_seed_with_its_own_faults(seed: int) -> None:
    report = run_seed(seed)
    assert report.violations == [], f"repeat it: python -m tests.simulation --seed {seed}"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault(kind: str) -> None:
    seed = 1_000 + KINDS.index(kind)
    report = run_seed(seed, [kind])
    assert report.violations == [], f"repeat it: python -m tests.simulation --seed {seed} --faults {kind}"


def test_without_faults_calls_are_answered_ahead_and_nothing_is_lost() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(2_000, 2_004):
        report = run_seed(seed, [])
        assert report.violations == [], f"repeat it: python -m tests.simulation --seed {seed} --faults none"
        outcomes += report.outcomes
    assert outcomes[Outcome.READY.value] + outcomes[Outcome.JOINED.value] > 0


@pytest.mark.parametrize("seed", [3, 7])
def test_the_same_seed_is_the_same_run_also_in_another_process(seed: int) -> None:
    here = run_seed(seed)
    there = subprocess.run(
        [sys.executable, "-c", _PRINT_DIGEST, str(seed)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert there.stdout.strip() == here.digest
