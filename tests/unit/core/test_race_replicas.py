"""One model request over its replicas: retries in one layer, second attempts under their cap, breakers apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.providers import BreakerState, Health
from forerun.core.race import Pace, Race
from forerun.core.race_replicas import (
    Failed,
    Fault,
    GaveUp,
    ReplicaRace,
    RequestTerms,
    StartAttempt,
    Step,
    StopAttempt,
    Won,
)

BUSY, AWAY, BROKEN, REFUSED = Failed(Fault.BUSY), Failed(Fault.AWAY), Failed(Fault.BROKEN), Failed(Fault.REFUSED)
FREELY = Race(most_extra=1.0)


def known_pace(seconds: float = 1.0, calls: int = 100) -> Pace:
    pace = Pace(calls=calls)
    for _ in range(100):
        pace.observe(seconds)
    return pace


@dataclass
class Play:
    """A request, its replicas, and what it was told to do."""

    terms: RequestTerms = field(default_factory=RequestTerms)
    replicas: int = 2
    pace: Pace = field(default_factory=Pace)
    health: list[Health] = field(default_factory=list)
    race: ReplicaRace = field(init=False)

    def __post_init__(self) -> None:
        self.health = self.health or [Health() for _ in range(self.replicas)]
        self.race = ReplicaRace(self.terms, self.health, self.pace)


def opened(health: Health, *, speculative: bool, now: float = 0.0) -> Health:
    for _ in range(5):
        health.breaker(speculative=speculative).record(False, now)
    assert health.breaker(speculative=speculative).state(now) is BreakerState.OPEN
    return health


def test_a_second_attempt_starts_after_the_quantile_and_the_first_token_decides() -> None:
    play = Play(RequestTerms(race=FREELY), pace=known_pace())
    race = play.race
    assert race.begin(0.0) == [StartAttempt(0, 0)]
    assert race.next_time() == pytest.approx(1.05)
    assert race.tick(1.0) == []
    assert race.tick(1.06) == [StartAttempt(1, 1, second=True)]
    assert race.first_token(1, 2.0) == [Won(1, raced=True), StopAttempt(0)]
    assert race.failed(0, Failed(Fault.STOPPED), 2.01) == []
    assert race.finished(1, 3.0) == []
    assert play.pace.extra == 1 and play.pace.calls == 101
    assert [one.authoritative.state(3.0) for one in play.health] == [BreakerState.CLOSED] * 2


def test_a_first_token_before_the_quantile_needs_no_second_attempt() -> None:
    race = Play(RequestTerms(race=FREELY), pace=known_pace()).race
    race.begin(0.0)
    assert race.first_token(0, 0.9) == [Won(0, raced=False)]
    assert race.next_time() == math.inf and race.tick(50.0) == []


def test_extra_requests_stay_under_their_cap_whatever_is_slow() -> None:
    pace = known_pace(calls=0)
    seconds = 0
    for number in range(1_000):
        race = Play(RequestTerms(race=Race(most_extra=0.05)), pace=pace).race
        race.begin(0.0)
        steps = race.tick(race.next_time()) if race.next_time() < math.inf else []
        seconds += len(steps)
        race.first_token(0, 1.0 if number % 2 else 9.0)
        assert pace.extra <= 0.05 * pace.calls
    assert pace.extra == seconds > 30


@pytest.mark.parametrize(
    ("terms", "replicas"),
    [
        (RequestTerms(race=FREELY, repeatable=False), 2),
        (RequestTerms(race=FREELY), 1),
        (RequestTerms(race=None), 2),
        (RequestTerms(race=FREELY, speculative=True), 2),
    ],
)
def test_what_is_never_raced(terms: RequestTerms, replicas: int) -> None:
    race = Play(terms, replicas, known_pace()).race
    race.begin(0.0)
    assert race.next_time() == math.inf


def test_a_second_attempt_has_to_be_worth_its_price() -> None:
    """It hides about 4 s: beyond the delay requests take 5 s more, the usual first token takes 1 s."""
    for cost, worth, starts in ((1.0, 1.0, True), (1.9, 1.0, True), (2.1, 1.0, False), (2.1, 2.0, True)):
        pace = known_pace()
        pace.outlived(5.0, seen_to_end=True)
        race = Play(RequestTerms(race=FREELY, second_cost=cost, second_worth=worth), pace=pace).race
        race.begin(0.0)
        assert bool(race.tick(1.1)) is starts, (cost, worth)


def test_attempts_that_were_stopped_do_not_make_what_they_hide_look_small() -> None:
    pace = known_pace()
    for _ in range(9):
        pace.outlived(1.0, seen_to_end=False)
    assert pace.hidden_seconds() == math.inf
    pace.outlived(11.0, seen_to_end=True)
    assert pace.hidden_seconds() == pytest.approx(19.0), "20 s were waited for one end, a second attempt takes 1 s"


def test_a_replica_that_is_waited_for_in_vain_teaches_that_a_second_attempt_pays() -> None:
    pace, terms = known_pace(), RequestTerms(race=FREELY, second_cost=1.0)
    pace.outlived(0.1, seen_to_end=True)
    for raced, failed in ((False, BROKEN), (True, BROKEN), (True, Failed(Fault.STOPPED))):
        race = Play(terms, pace=pace).race
        race.begin(0.0)
        assert bool(race.tick(1.1)) is raced
        race.failed(0, failed, 31.0)


def test_a_second_attempt_goes_only_where_the_speculative_breaker_admits_it_and_touches_no_other() -> None:
    health = [Health(), opened(Health(), speculative=True, now=1.0), Health()]
    play = Play(RequestTerms(race=FREELY), pace=known_pace(), health=health)
    play.race.begin(0.0)
    assert play.race.tick(1.1) == [StartAttempt(1, 2, second=True)]
    for _ in range(20):
        other = Play(RequestTerms(race=FREELY), pace=known_pace(), health=health)
        other.race.begin(0.0)
        for step in other.race.tick(1.1):
            assert isinstance(step, StartAttempt)
            other.race.failed(step.attempt, BROKEN, 1.2)
        other.race.first_token(0, 2.0)
        other.race.finished(0, 2.1)
    assert health[2].speculative.state(1.5) is BreakerState.OPEN
    assert [one.authoritative.state(2.2) for one in health] == [BreakerState.CLOSED] * 3
    last = Play(RequestTerms(race=FREELY), pace=known_pace(), health=[health[0], health[2]])
    last.race.begin(0.0)
    assert last.race.tick(1.3) == []


def test_a_failed_first_attempt_leaves_the_answer_to_the_second() -> None:
    race = Play(RequestTerms(race=FREELY), pace=known_pace()).race
    race.begin(0.0)
    race.tick(1.1)
    assert race.failed(0, BROKEN, 1.2) == []
    assert race.first_token(1, 1.5) == [Won(1, raced=True)]


def test_where_both_attempts_fail_the_request_goes_on_as_a_retry() -> None:
    race = Play(RequestTerms(race=FREELY), pace=known_pace()).race
    race.begin(0.0)
    race.tick(1.1)
    race.failed(1, BROKEN, 1.2)
    assert race.failed(0, BROKEN, 1.3) == [StartAttempt(2, 1)]
    assert race.failed(2, BROKEN, 1.4) == [GaveUp(2)]


def test_a_retry_goes_to_another_replica_at_once_and_back_to_the_same_one_after_its_wait() -> None:
    race = Play().race
    race.begin(0.0)
    assert race.failed(0, Failed(Fault.BUSY, 30.0), 0.1) == [StartAttempt(1, 1)]
    alone = Play(replicas=1).race
    alone.begin(0.0)
    assert alone.failed(0, Failed(Fault.BUSY, 30.0), 0.1) == []
    assert alone.next_time() == pytest.approx(30.1)
    assert alone.tick(30.2) == [StartAttempt(1, 0)]
    assert alone.failed(1, BROKEN, 30.3) == []
    assert alone.next_time() == pytest.approx(30.5)


def test_a_replica_without_a_place_is_no_bad_replica_and_the_request_goes_to_another() -> None:
    play = Play()
    for _ in range(30):
        race = Play(health=play.health).race
        assert race.begin(0.0) == [StartAttempt(0, 0)]
        assert race.failed(0, Failed(Fault.FULL), 0.0) in ([StartAttempt(1, 1)], [GaveUp(0)])
        race.first_token(1, 0.1)
        race.finished(1, 0.2)
    assert play.health[0].authoritative.state(1.0) is BreakerState.CLOSED


def test_what_is_never_tried_again() -> None:
    for failed, terms in (
        (REFUSED, RequestTerms()),
        (Failed(Fault.STOPPED), RequestTerms()),
        (BROKEN, RequestTerms(repeatable=False)),
        (BUSY, RequestTerms(speculative=True)),
    ):
        race = Play(terms).race
        race.begin(0.0)
        assert race.failed(0, failed, 0.1) == [GaveUp(0)], (failed, terms)
    started = Play().race
    started.begin(0.0)
    started.first_token(0, 0.5)
    assert started.failed(0, BROKEN, 0.6) == [GaveUp(0)], "a token was delivered: nothing else may follow it"


def test_what_certainly_has_not_begun_is_tried_again_even_where_it_may_not_be_repeated() -> None:
    for failed in (BUSY, AWAY):
        race = Play(RequestTerms(repeatable=False)).race
        race.begin(0.0)
        assert race.failed(0, failed, 0.1) == [StartAttempt(1, 1)]


def test_of_two_attempts_the_one_that_was_too_slow_is_not_tried_again_when_the_other_fails() -> None:
    for slow, other in ((0, 1), (1, 0)):
        race = Play(RequestTerms(race=FREELY), pace=known_pace()).race
        race.begin(0.0)
        race.tick(1.06)
        assert race.failed(slow, Failed(Fault.SLOW), 30.0) == [], "the other one runs"
        assert race.failed(other, BROKEN, 31.0) == [] and race.next_time() > 31.0
        assert race.tick(race.next_time()) == [StartAttempt(2, other)]


def test_what_was_too_slow_is_asked_of_others_and_not_there_again() -> None:
    """It still has the request, and would have it twice."""
    slow = Failed(Fault.SLOW)
    alone = Play(replicas=1).race
    alone.begin(0.0)
    assert alone.failed(0, slow, 30.0) == [GaveUp(0)]
    two = Play(replicas=2).race
    two.begin(0.0)
    assert two.failed(0, slow, 30.0) == [StartAttempt(1, 1)]
    assert two.failed(1, slow, 60.0) == [GaveUp(1)], "both of them have it"
    mixed = Play(replicas=2).race
    mixed.begin(0.0)
    mixed.failed(0, slow, 30.0)
    assert mixed.failed(1, AWAY, 30.1) == []
    assert mixed.tick(mixed.next_time()) == [StartAttempt(2, 1)], "the other one never had it"
    once = Play(RequestTerms(repeatable=False), replicas=2).race
    once.begin(0.0)
    assert once.failed(0, slow, 30.0) == [GaveUp(0)], "it may have begun"


def test_while_all_replicas_are_left_alone_it_says_for_how_long() -> None:
    health = [opened(Health(), speculative=False, now=now) for now in (10.0, 10.4)]
    race = Play(health=health).race
    assert race.retry_after(10.5) == pytest.approx(0.5)
    assert race.retry_after(11.2) is None, "the first one may be asked"
    assert Play(health=[health[0], Health()]).race.retry_after(10.5) is None, "one is well"
    assert Play(health=[opened(Health(), speculative=True, now=10.0)]).race.retry_after(10.5) is None


def test_retries_end_with_attempts_with_the_deadline_and_with_the_budget() -> None:
    race = Play().race
    race.begin(0.0)
    race.failed(0, BROKEN, 0.1)
    race.failed(1, BROKEN, 0.2)
    assert race.failed(2, BROKEN, 0.3) == [GaveUp(2)]
    late = Play(RequestTerms(deadline=20.0), replicas=1).race
    late.begin(0.0)
    assert late.failed(0, Failed(Fault.BUSY, 30.0), 0.1) == [GaveUp(0)]
    health = Health()
    retried = 0
    for _ in range(100):
        one = Play(replicas=1, health=[health]).race
        one.begin(0.0)
        retried += one.failed(0, Failed(Fault.AWAY), 0.1) == []
        health.authoritative.record(True, 0.1)  # a storm that the breaker does not see
        health.authoritative.record(True, 0.1)
    assert retried <= 10 + 0.1 * 100, "a tenth of the requests, and what was there at the start"


def test_a_replica_that_fails_is_left_for_another_and_found_again_by_one_request() -> None:
    health = [opened(Health(), speculative=False), Health()]
    assert Play(health=health).race.begin(0.5) == [StartAttempt(0, 1)]
    probe = Play(health=health).race
    assert probe.begin(1.5) == [StartAttempt(0, 0)], "its pause is over: one request looks"
    assert Play(health=health).race.begin(1.6) == [StartAttempt(0, 1)], "and only one"
    assert probe.failed(0, BROKEN, 1.7) == [StartAttempt(1, 1)]
    assert health[0].authoritative.state(1.8) is BreakerState.OPEN
    again = Play(health=health).race
    assert again.begin(4.0) == [StartAttempt(0, 0)]
    again.first_token(0, 4.1)
    again.finished(0, 4.2)
    assert health[0].authoritative.state(4.3) is BreakerState.CLOSED


def test_where_no_replica_is_well_the_first_is_asked_once() -> None:
    health = [opened(Health(), speculative=False) for _ in range(2)]
    race = Play(health=health).race
    assert race.begin(0.1) == [StartAttempt(0, 0)]
    assert race.failed(0, AWAY, 0.2) == [GaveUp(0)]


def test_a_speculative_request_goes_only_where_guesses_do_not_fail() -> None:
    health = [opened(Health(), speculative=True), Health()]
    assert Play(RequestTerms(speculative=True), health=health).race.begin(0.1) == [StartAttempt(0, 1)]
    opened(health[1], speculative=True)
    race = Play(RequestTerms(speculative=True), health=health).race
    assert race.begin(0.1) == [GaveUp(0)] and race.over
    assert all(one.authoritative.state(0.1) is BreakerState.CLOSED for one in health)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["tick", "token", "finish", *Fault]), st.integers(0, 2), st.sampled_from([0.0, 0.3, 1.5, 40.0])
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(
    events=EVENTS,
    repeatable=st.booleans(),
    speculative=st.booleans(),
    replicas=st.integers(1, 3),
    race=st.sampled_from([None, FREELY]),
)
def test_whatever_happens_there_is_one_end_and_nothing_after_it(
    events: list[tuple[str, int, float]], repeatable: bool, speculative: bool, replicas: int, race: Race | None
) -> None:
    play = Play(RequestTerms(repeatable=repeatable, speculative=speculative, race=race), replicas, known_pace())
    machine, now = play.race, 0.0
    steps: list[Step] = list(machine.begin(now))
    began: dict[int, bool] = {}
    for what, attempt, later in events:
        now += later
        if what == "tick":
            steps += machine.tick(now)
        elif what == "token":
            steps += machine.first_token(attempt, now)
        elif what == "finish":
            steps += machine.finished(attempt, now) if machine.winner == attempt else []
        else:
            began[attempt] = Fault(what) in (Fault.BROKEN, Fault.SLOW, Fault.STOPPED)
            steps += machine.failed(attempt, Failed(Fault(what)), now)
    starts = [one for one in steps if isinstance(one, StartAttempt)]
    ends = [one for one in steps if isinstance(one, Won | GaveUp)]
    assert [one.attempt for one in starts] == list(range(len(starts))) and len(starts) <= 3 + 1
    assert sum(isinstance(one, Won) for one in ends) <= 1 and sum(isinstance(one, GaveUp) for one in ends) <= 1
    assert all(0 <= one.replica < replicas for one in starts)
    if not repeatable:
        assert not any(one.second for one in starts)
    if speculative:
        assert len(starts) == 1
    if any(isinstance(one, GaveUp) for one in ends):
        last = next(number for number, one in enumerate(steps) if isinstance(one, GaveUp))
        assert not any(isinstance(one, StartAttempt) for one in steps[last:])
