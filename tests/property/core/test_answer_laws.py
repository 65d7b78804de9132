"""Candidates of an answer: whatever candidates and judges do, the cap holds, and the one decision is the best."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.answers import Beam, BestOf, Decided, End, Gain, Generate, Limit, Price, Score, Stop, Terms, Worth

fast = settings(max_examples=200, deadline=None)
GENERATE, SCORE = Price(expected=1.0, most=3.0), Price(expected=0.5, most=1.0)
SCORES: tuple[float | None, ...] = (0.0, 0.25, 0.5, 0.5, 0.9, 1.0, None, math.nan, -1.0, 7.0, math.inf)


@dataclass(frozen=True)
class Fate:
    """How one candidate goes, drawn ahead."""

    seconds: float
    says: str
    cost: float
    fails: bool
    ends: bool
    score: float | None
    score_seconds: float
    score_cost: float
    stop_seconds: float
    breaks: int = 0
    """Attempts that break off, each after it has cost as much."""


fates = st.builds(
    Fate,
    seconds=st.sampled_from([0.1, 1.0, 1.0, 2.0, 50.0, math.inf]),
    says=st.sampled_from("abc"),
    cost=st.sampled_from([0.0, 1.0, 2.5, 3.0]),
    fails=st.sampled_from([False, False, False, True]),
    ends=st.booleans(),
    score=st.sampled_from(SCORES),
    score_seconds=st.sampled_from([0.1, 1.0, math.inf]),
    score_cost=st.sampled_from([0.0, 0.5, 1.0]),
    stop_seconds=st.sampled_from([0.0, 0.05]),
    breaks=st.sampled_from([0, 0, 1, 2]),
)


@dataclass
class World:
    """Performs a search in virtual time; equal times go in the order of their making."""

    machine: BestOf | Beam
    fates: list[Fate]
    deadline: float = 100.0
    off_at: float = math.inf
    now: float = 0.0
    launched: list[Generate] = field(default_factory=list)
    launched_at: list[float] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    broken: Counter[int] = field(default_factory=Counter)
    under_way: dict[int, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    scores: dict[int, float] = field(default_factory=dict)
    spent: float = 0.0
    most_spent: float = 0.0
    decisions: list[Decided] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], list[object]]]] = field(default_factory=list)
    _made: int = 0

    def run(self) -> Decided:
        self._take(self.machine.begin(0.0))
        self._at(self.deadline, lambda: list(self.machine.expire()))
        self._at(self.off_at, lambda: list(self.machine.forbid(Limit.SWITCHED_OFF)))
        while self._events or self.machine.next_time() < math.inf:
            due = self.machine.next_time()
            if due < math.inf and (not self._events or due < self._events[0][0]):
                self.now = max(self.now, due)
                self._take(self.machine.tick(self.now))
                continue
            self.now, _, happens = heapq.heappop(self._events)
            self._take(happens())
        assert not self.under_way, "something still runs after the end"
        (decided,) = self.decisions
        assert self.machine.over
        return decided

    def _at(self, time: float, happens: Callable[[], list[object]]) -> None:
        if time < math.inf:
            self._made += 1
            heapq.heappush(self._events, (time, self._made, happens))

    def _fate(self, candidate: int) -> Fate:
        return self.fates[candidate % len(self.fates)]

    def _cost(self, candidate: int) -> float:
        """Of what broke off."""
        return self.broken[candidate] * self._fate(candidate).cost

    def _pay(self, money: float) -> float:
        self.spent += money
        return money

    def _take(self, steps: object) -> None:
        for step in steps:  # type: ignore[attr-defined]
            assert not self.decisions, f"{step} after the decision"
            if self.now > self.off_at:
                assert not isinstance(step, Score), "a score beside the only answer"
                assert not isinstance(step, Generate) or step.whole, "another beginning"
            if isinstance(step, Generate):
                assert step.candidate == len(self.launched)
                self.launched.append(step)
                self.launched_at.append(self.now)
                self._start(step.candidate, "generate")
            elif isinstance(step, Score):
                assert step.candidate in self.texts
                self.judged.append(step.candidate)
                self._start(step.candidate, "score")
            elif isinstance(step, Stop):
                assert step.candidate in self.under_way, "told to stop what does not run"
                self._stop(step.candidate)
            else:
                assert isinstance(step, Decided)
                self.decisions.append(step)

    def _start(self, candidate: int, what: str) -> None:
        assert candidate not in self.under_way
        fate = self._fate(candidate)
        self.under_way[candidate] = what
        if what == "generate":
            self._at(self.now + fate.seconds, lambda: self._generated(candidate))
        else:
            self._at(self.now + fate.score_seconds, lambda: self._scored(candidate))

    def _generated(self, candidate: int) -> list[object]:
        if self.under_way.get(candidate) != "generate":
            return []
        fate = self._fate(candidate)
        # The first one is sent again, and the end of a beam; nothing else is.
        waited_for = not candidate or (isinstance(self.machine, Beam) and self.launched[candidate].whole)
        if waited_for and self.broken[candidate] < fate.breaks:
            self.broken[candidate] += 1
            if self.machine.again(candidate):
                self._at(self.now + fate.seconds, lambda: self._generated(candidate))
                return []
            del self.under_way[candidate]
            return list(self.machine.failed(candidate, "broken", self._pay(self._cost(candidate)), self.now))
        del self.under_way[candidate]
        if fate.fails:
            cost = self._pay(self._cost(candidate))
            return list(self.machine.failed(candidate, "broken", cost, self.now))
        parent = self.launched[candidate].parent
        self.texts[candidate] = (self.texts[parent] if parent is not None else "") + fate.says
        cost = self._pay(fate.cost + self._cost(candidate))
        if isinstance(self.machine, Beam):
            ends = fate.ends or self.launched[candidate].whole
            if ends:
                self.ended.add(candidate)
            return list(self.machine.generated(candidate, self.texts[candidate], cost, self.now, ended=ends))
        return list(self.machine.generated(candidate, self.texts[candidate], cost, self.now))

    def _scored(self, candidate: int) -> list[object]:
        if self.under_way.get(candidate) != "score":
            return []
        del self.under_way[candidate]
        fate = self._fate(candidate)
        if fate.score is not None and 0.0 <= fate.score <= 1.0:
            self.scores[candidate] = fate.score
        return list(self.machine.scored(candidate, fate.score, self._pay(fate.score_cost), self.now))

    def _stop(self, candidate: int) -> None:
        self.stopped.append(candidate)
        what = self.under_way[candidate]
        self.under_way[candidate] = "stopping"
        fate = self._fate(candidate)
        cost = fate.cost + self._cost(candidate) if what == "generate" else fate.score_cost

        def ended() -> list[object]:
            del self.under_way[candidate]
            return list(self.machine.stopped(candidate, self._pay(cost)))

        self._at(self.now + fate.stop_seconds, ended)


terms = st.builds(
    Terms,
    count=st.integers(1, 6),
    at_once=st.integers(1, 6),
    stop_at=st.sampled_from([None, 0.5, 0.9, 1.0]),
    max_cost=st.sampled_from([0.5, 3.0, 5.0, 9.0, 14.0, math.inf]),
    worth=st.sampled_from([Worth(money=1_000.0), Worth(money=0.0), Worth(money=40.0, gain=Gain(prior=0.3))]),
    generate=st.just(GENERATE),
    score=st.just(SCORE),
)


def judge(world: World, decided: Decided, cap: float) -> None:
    """What holds for every search."""
    assert world.spent <= cap, "the cap was exceeded although nothing cost more than it could"
    assert math.isclose(decided.cost, world.spent)
    assert math.isclose(sum(one.cost for one in decided.reports), world.spent)
    assert [one.candidate for one in decided.reports] == list(range(len(world.launched)))
    assert len(set(world.stopped)) == len(world.stopped)
    if decided.chosen is None:
        assert not world.texts
        assert all(one.end is not End.CHOSEN for one in decided.reports)
    else:
        assert decided.chosen in world.texts
        assert decided.why


@fast
@given(terms, st.lists(fates, min_size=6, max_size=6), st.booleans())
def test_the_best_of_all_is_taken_within_the_cap(terms: Terms, drawn: list[Fate], votes: bool) -> None:
    world = World(BestOf(terms, votes=votes), drawn)
    decided = world.run()
    judge(world, decided, terms.max_cost)
    assert len(world.launched) <= terms.count
    if terms.max_cost >= GENERATE.most:
        assert world.launched, "the first candidate is always launched, where the cap allows it"
    if terms.worth.money == 0.0:
        assert len(world.launched) <= 1
    if len(world.launched) < terms.count and not world.stopped and decided.limited_by is Limit.NONE:
        assert terms.stop_at is not None or votes
    if decided.chosen is None:
        return
    compared = [one for one in decided.reports if one.end in (End.CHOSEN, End.BEATEN) and one.score is not None]
    if compared:
        best = max(one.score for one in compared if one.score is not None)
        first = min(one.candidate for one in compared if one.score == best)
        if not votes:
            assert decided.chosen == first
            assert all(one.score in (0.0, 0.25, 0.5, 0.9, 1.0) for one in compared)
        else:
            said = Counter(world.texts[one.candidate] for one in compared)
            assert said[world.texts[decided.chosen]] == max(said.values())
            firsts = {
                text: min(one.candidate for one in compared if world.texts[one.candidate] == text) for text in said
            }
            tied = [text for text, count in said.items() if count == max(said.values())]
            assert decided.chosen == min(firsts[text] for text in tied)
    else:
        assert decided.chosen == min(world.texts)
    assert len([one for one in decided.reports if one.end is End.CHOSEN]) == 1


@fast
@given(st.lists(fates, min_size=6, max_size=6), st.integers(2, 6), st.booleans())
def test_an_early_stop_never_changes_whose_answer_wins_by_votes(drawn: list[Fate], count: int, quick: bool) -> None:
    """Stopped early or waited for to the end: the same answer is taken, where no candidate is late or fails."""
    steady = [
        Fate(1.0 + number / 100, one.says, 1.0, False, True, one.score, 0.1, 0.0, 0.0)
        for number, one in enumerate(drawn)
    ]
    order = steady if quick else steady[::-1]
    terms = Terms(count=count, worth=Worth(money=1_000.0), generate=GENERATE)
    world = World(BestOf(terms, votes=True), order)
    decided = world.run()
    said = Counter(one.says for one in order[:count])
    assert decided.chosen is not None
    taken = world.texts[decided.chosen]
    assert said[taken] == max(said.values())
    if list(said.values()).count(max(said.values())) == 1 and world.stopped:
        left = len(world.stopped)
        got = sorted(Counter(world.texts.values()).values(), reverse=True)
        assert got[0] > (got[1] if len(got) > 1 else 0) + left


@fast
@given(terms, st.integers(1, 3), st.integers(1, 4), st.lists(fates, min_size=7, max_size=7))
def test_a_beam_ends_within_its_cap_and_takes_the_best_of_what_has_ended(
    terms: Terms, expand: int, steps: int, drawn: list[Fate]
) -> None:
    world = World(Beam(terms, expand=expand, steps=steps, finish=Price(2.0, 3.0)), drawn)
    decided = world.run()
    judge(world, decided, terms.max_cost)
    assert len(world.launched) <= terms.count + terms.count * expand * (steps - 1) + 1
    for one in world.launched:
        assert one.parent is None or (one.parent in world.texts and one.parent not in world.ended), (
            "went on with an end"
        )
    finishing = [one for one in world.launched if one.whole]
    assert len(finishing) <= 1
    if terms.worth.money == 0.0:
        assert len(world.launched) <= 2, "one beginning, and its end"
    if decided.chosen is None or decided.chosen not in world.ended or finishing:
        return
    lineage = {one.candidate for one in decided.reports if one.end is End.CHOSEN}
    assert decided.chosen in lineage
    if terms.stop_at is not None and "good enough" in decided.why:
        best = max(world.scores.get(one, -1.0) for one in world.ended)
        assert world.scores[decided.chosen] == best >= terms.stop_at


def test_a_beam_follows_the_scores_and_is_generated_to_its_end() -> None:
    """Width 2: of four continuations the two best go on; after the steps the best one is finished."""
    fate = {
        number: Fate(1.0, text, 1.0, False, False, score, 0.1, 0.1, 0.0)
        for number, (text, score) in enumerate(
            [("a", 0.2), ("b", 0.9), ("c", 0.3), ("d", 0.8), ("e", 0.7), ("f", 0.1), ("g", 0.5)]
        )
    }
    terms = Terms(count=2, worth=Worth(money=1_000.0), generate=GENERATE, score=SCORE)
    world = World(Beam(terms, expand=2, steps=2, finish=GENERATE), list(fate.values()))
    decided = world.run()
    # In turn: b and a are gone on with by 2, 3 and then by 4, 5.
    assert [one.parent for one in world.launched] == [None, None, 1, 0, 1, 0, 3]
    assert world.texts[6] == "adg"
    assert decided.chosen == 6
    assert [one.candidate for one in decided.reports if one.end is End.CHOSEN] == [0, 3, 6]
    assert decided.why == "the best score, 0.8, after 2 steps; generated to its end"


def test_a_beam_keeps_the_money_that_its_end_needs() -> None:
    """Every piece costs what it can cost at most: pieces end where the end of the answer would be too dear."""
    fate = Fate(1.0, "x", 3.0, False, False, 0.5, 0.1, 1.0, 0.0)
    for cap in (7.0, 10.0, 11.0, 15.0, 30.0):
        terms = Terms(count=1, max_cost=cap, worth=Worth(money=1_000.0), generate=GENERATE, score=SCORE)
        world = World(Beam(terms, expand=1, steps=4, finish=GENERATE), [fate])
        decided = world.run()
        assert decided.chosen == len(world.launched) - 1 and world.launched[-1].whole, f"no end at a cap of {cap}"
        assert (decided.limited_by is Limit.PRICE) is (cap < 19.0)


@fast
@given(terms, st.booleans(), st.sampled_from([0.05, 0.5, 1.05, 1.5, 3.0]), st.lists(fates, min_size=7, max_size=7))
def test_once_more_than_one_answer_is_forbidden_the_one_that_is_there_is_taken(
    terms: Terms, beam: bool, off_at: float, drawn: list[Fate]
) -> None:
    machine = Beam(terms, finish=Price(2.0, 3.0)) if beam else BestOf(terms)
    world = World(machine, drawn, off_at=off_at)
    decided = world.run()
    judge(world, decided, terms.max_cost)
    assert beam or all(at <= off_at for at in world.launched_at)


def test_of_equal_scores_the_first_launched_is_taken_whichever_was_there_first() -> None:
    late_first = [Fate(2.0 - number / 10, str(number), 1.0, False, True, 0.5, 0.1, 0.0, 0.0) for number in range(4)]
    world = World(BestOf(Terms(count=4, worth=Worth(money=1_000.0))), late_first)
    assert world.run().chosen == 0
