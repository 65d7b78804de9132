"""Who gets a runner, and who gives one back."""

import pytest

from forerun.sandbox.demand import Demand
from forerun.sandbox.owner import Owner
from forerun.sandbox.runners.leases import Lease, may_take_ahead, to_give_up, unused


def lease(name: str, used_at: float, *, asked_for: int = 0, ahead: int = 0) -> Lease:
    made = Lease(Owner("t", name), used_at)
    for demanded, count in ((True, asked_for), (False, ahead)):
        for _ in range(count):
            made.begin(used_at, Demand(demanded))
    return made


@pytest.mark.parametrize(
    ("free", "waiting", "kept", "may"),
    [(0, 0, 0, False), (1, 0, 0, True), (1, 0, 1, False), (2, 0, 1, True), (2, 1, 1, False), (3, 1, 1, True)],
)
def test_work_ahead_of_time_takes_what_nobody_waits_for(free: int, waiting: int, kept: int, may: bool) -> None:
    assert may_take_ahead(free, waiting=waiting, kept=kept) is may


def test_who_does_nothing_gives_up_first_then_who_works_ahead_and_never_who_is_asked() -> None:
    busy, ahead = lease("busy", 1.0, asked_for=1, ahead=1), lease("ahead", 2.0, ahead=2)
    idle, idle_longer = lease("idle", 9.0), lease("idle longer", 8.0)
    everyone = [busy, ahead, idle, idle_longer]
    for expected in (idle_longer, idle, ahead):
        found = to_give_up(everyone)
        assert found is expected
        found.given_up = True
    assert to_give_up(everyone) is None


def test_the_end_of_what_was_asked_for_makes_a_lease_idle() -> None:
    one = lease("one", 1.0, asked_for=1)
    assert unused([one], before=5.0) == []
    one.end(3.0, one.running[0])
    assert (unused([one], before=3.0), unused([one], before=5.0)) == ([], [one])
    assert to_give_up([one]) is one


def test_a_promoted_command_keeps_its_runner() -> None:
    one = lease("one", 1.0, ahead=2)
    one.running[1].asked_for = True
    assert to_give_up([one]) is None
    one.end(2.0, one.running[1])
    assert to_give_up([one]) is one
