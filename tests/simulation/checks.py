"""What has to hold after every run, whatever went wrong in it."""

from __future__ import annotations

from typing import Final

from tests.simulation.checks_answers import answers, deadlines, remains
from tests.simulation.checks_books import budgets, ledger, purses, repeats
from tests.simulation.checks_files import files
from tests.simulation.checks_ownership import identities, owners, strangers, taints
from tests.simulation.checks_plans import plans
from tests.simulation.checks_races import races
from tests.simulation.checks_results import audits, barriers, discarded, endings, observations, staleness, switch
from tests.simulation.checks_room import room
from tests.simulation.evidence import Evidence

_CHECKS: Final = (
    observations,
    barriers,
    files,
    plans,
    staleness,
    ledger,
    repeats,
    answers,
    deadlines,
    discarded,
    endings,
    remains,
    budgets,
    purses,
    races,
    room,
    switch,
    audits,
    identities,
    taints,
    owners,
    strangers,
)
_SHOWN: Final = 12


def violations(evidence: Evidence) -> list[str]:
    """Everything that does not hold, one sentence each, the number of the invariant first."""
    found: list[str] = []
    for check in _CHECKS:
        every = list(check(evidence))
        found += every[:_SHOWN]
        if len(every) > _SHOWN:
            found.append(f"... and {len(every) - _SHOWN} more of {check.__name__}")
    return found
