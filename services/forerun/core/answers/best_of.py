"""The best of several independent candidates. Pure: what happened goes in, what to do comes out.

Ties: of equal scores the candidate that was launched first is taken; of equal votes the group whose first candidate was
launched first, and of a group its first candidate. The first candidate is the answer that would have been given without
any of this: it is launched always, where the price cap allows it, and taken where none can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from forerun.core.answers.model import Decided, End, Generate, Limit, Price, Report, Score, Step, Stop, Terms, patience
from forerun.core.answers.spending import Spending

_GENERATION, _SCORE = "generation", "score"


class _Stage(Enum):
    GENERATING = auto()
    SCORING = auto()
    SCORED = auto()
    UNSCORED = auto()
    FAILED = auto()
    STOPPING = auto()
    STOPPED = auto()


@dataclass(slots=True)
class _Candidate:
    number: int
    launched_at: float
    stage: _Stage = _Stage.GENERATING
    there: bool = False
    key: str = ""
    score: float | None = None
    reason: str = ""

    @property
    def under_way(self) -> bool:
        return self.runs or self.stage is _Stage.STOPPING

    @property
    def runs(self) -> bool:
        """And was not told to stop."""
        return self.stage in (_Stage.GENERATING, _Stage.SCORING)


@dataclass(slots=True)
class BestOf:
    """One search.

    Attributes:
        terms: What holds for it.
        votes: Candidates are not scored one by one: what most of them say is taken.
        over: It has decided.
    """

    terms: Terms
    votes: bool = False
    over: bool = False
    _candidates: list[_Candidate] = field(default_factory=list)
    _spending: Spending = field(init=False)
    _now: float = 0.0
    _longest: float = math.inf
    _closed: bool = False
    _early: str = ""

    def __post_init__(self) -> None:
        """Opens the purse."""
        self._spending = Spending(self.terms.max_cost, self.terms.worth)

    @property
    def spent(self) -> float:
        """Money so far."""
        return self._spending.spent

    def begin(self, now: float) -> list[Step]:
        """Launches the first candidates."""
        self._now = now
        return self._go_on()

    def again(self, candidate: int) -> bool:
        """Takes the price of a candidate once more; False where the cap does not allow it.

        Asked before a request is sent again of which an earlier attempt may have cost its price.
        """
        return self._spending.reserve(_GENERATION, candidate, self.terms.generate)

    def next_time(self) -> float:
        """When `tick` is due: a candidate takes much longer than those that can be compared."""
        running = [one.launched_at for one in self._candidates if one.runs]
        return math.inf if self._closed or not running else max(running) + patience(self._longest)

    def tick(self, now: float) -> list[Step]:
        """Time has passed: whoever is still not there is not waited for any longer."""
        if self.over or self._closed or now < self.next_time():
            return []
        return self._close("the others took too long")

    def expire(self) -> list[Step]:
        """There is no time left: what is there is taken."""
        return self._close("the time was over") if any(one.runs for one in self._candidates) else []

    def forbid(self, limit: Limit) -> list[Step]:
        """Only one answer is allowed from now on: what is there is taken, else the first one that still comes."""
        if self.over or self._closed:
            return []
        self._spending.limited_by = limit
        there = any(one.there for one in self._candidates)
        kept = None if there else next((one for one in self._candidates if one.runs), None)
        return self._close(limit.value, kept)

    def generated(self, candidate: int, key: str, cost: float, now: float, *, score: Price | None = None) -> list[Step]:
        """A candidate is there.

        Args:
            candidate: Its number.
            key: Equal for candidates that say the same.
            cost: What it has cost.
            now: The time.
            score: What its score costs; None for the price of the terms.
        """
        self._now = now
        one = self._settle(_GENERATION, candidate, cost)
        if one is None:
            return self._go_on()
        one.key, one.there = key, True
        if self._closed:  # it is all that there will be (see `forbid`)
            one.stage = _Stage.UNSCORED
            return self._arrived(one)
        if self.votes:
            one.stage = _Stage.SCORED
            return self._arrived(one)
        twin = next((c for c in self._candidates if c is not one and c.key == key and c.stage is _Stage.SCORED), None)
        if twin is not None:  # what says the same is not judged twice
            one.stage, one.score = twin.stage, twin.score
            return self._arrived(one)
        if not self._spending.reserve(_SCORE, candidate, score or self.terms.score):
            one.stage = _Stage.UNSCORED
            return self._arrived(one)
        one.stage = _Stage.SCORING
        return [Score(candidate), *self._go_on()]

    def scored(self, candidate: int, score: float | None, cost: float, now: float) -> list[Step]:
        """A candidate was judged; None or a score that is none in 0..1 leaves it without."""
        self._now = now
        one = self._settle(_SCORE, candidate, cost)
        if one is None:
            return self._go_on()
        if score is None or not 0.0 <= score <= 1.0:  # also refuses NaN
            one.stage = _Stage.UNSCORED
        else:
            one.stage, one.score = _Stage.SCORED, score
        return self._arrived(one)

    def failed(self, candidate: int, reason: str, cost: float, now: float) -> list[Step]:
        """A candidate could not be generated."""
        self._now = now
        one = self._settle(_GENERATION, candidate, cost)
        if one is None:
            return self._go_on()
        one.stage, one.reason = _Stage.FAILED, reason
        return self._arrived(one)

    def stopped(self, candidate: int, cost: float) -> list[Step]:
        """What was under way for a candidate has ended, because it was told to stop."""
        self._settle(_GENERATION, candidate, cost)
        self._spending.settle(_SCORE, candidate, 0.0)
        return self._go_on()

    # ------------------------------------------------------------ inside

    def _settle(self, what: str, candidate: int, cost: float) -> _Candidate | None:
        """Books a cost; the candidate, where it is still of use."""
        self._spending.settle(what, candidate, cost)
        one = self._candidates[candidate]
        if one.stage is _Stage.STOPPING:
            one.stage = _Stage.STOPPED
            return None
        return one if one.under_way else None

    def _arrived(self, one: _Candidate) -> list[Step]:
        """One more candidate can be compared, or will never be."""
        if one.stage is _Stage.SCORED:
            taken = self._now - one.launched_at
            self._longest = taken if math.isinf(self._longest) else max(self._longest, taken)
        if not self._closed and (why := self._enough()) is not None:
            return self._close(why)
        return self._go_on()

    def _enough(self) -> str | None:
        """Why nothing that still runs can change what is taken, or has to."""
        good, stop_at = [c.score for c in self._candidates if c.score is not None], self.terms.stop_at
        groups = self._groups()
        if self.votes and groups:
            left = self.terms.count - sum(not c.under_way for c in self._candidates)
            leader, second = groups[0], len(groups[1]) if len(groups) > 1 else 0
            if len(leader) > second + left:
                return "no other answer can get as many votes any more"
            if stop_at is not None and len(leader) >= stop_at * self.terms.count:
                return f"{len(leader)} of {self.terms.count} votes are enough"
            return None
        if stop_at is not None and good and max(good) >= stop_at:
            return f"a score of {max(good):.3g} is good enough"
        return None

    def _close(self, why: str, kept: _Candidate | None = None) -> list[Step]:
        """Launches nothing more and stops what runs, but for the one that is kept."""
        self._closed, self._early = True, why
        steps: list[Step] = []
        for one in self._candidates:
            if one.runs and one is not kept:
                one.stage = _Stage.STOPPING
                steps.append(Stop(one.number))
        return steps + self._go_on()

    def _go_on(self) -> list[Step]:
        steps: list[Step] = []
        while not self._closed and self._launches():
            steps.append(Generate(len(self._candidates) - 1))
        if not self.over and not any(one.under_way for one in self._candidates):
            self.over = True
            steps.append(self._decided())
        return steps

    def _launches(self) -> bool:
        number = len(self._candidates)
        running = sum(one.under_way for one in self._candidates)
        if number >= self.terms.count or running >= max(1, self.terms.at_once):
            return False
        expected = self.terms.generate.expected + self.terms.score.expected
        if number and not self._spending.pays(expected):
            return self._launch_no_more()
        if not self._spending.reserve(_GENERATION, number, self.terms.generate):
            return self._launch_no_more()
        self._candidates.append(_Candidate(number, self._now))
        return True

    def _launch_no_more(self) -> bool:
        """Fewer than asked for. They are counted as if no more had been asked for, also in votes."""
        number = len(self._candidates)
        self.terms = replace(self.terms, count=number)
        return False

    # ------------------------------------------------------------ the decision

    def _groups(self) -> list[list[_Candidate]]:
        """Candidates that say the same, most votes first; ties by their first candidate."""
        groups: dict[str, list[_Candidate]] = {}
        for one in self._candidates:
            if one.stage is _Stage.SCORED:
                groups.setdefault(one.key, []).append(one)
        return sorted(groups.values(), key=lambda group: (-len(group), group[0].number))

    def _decided(self) -> Decided:
        chosen, why = self._choice()
        if self.votes:
            voters = sum(c.stage is _Stage.SCORED for c in self._candidates)
            for group in self._groups():
                for one in group:
                    one.score = len(group) / voters
        reports = tuple(self._report(one, chosen) for one in self._candidates)
        return Decided(chosen, why, reports, self._spending.spent, self._spending.limited_by)

    def _choice(self) -> tuple[int | None, str]:
        scored = [c for c in self._candidates if c.stage is _Stage.SCORED]
        if not scored:
            there = [c for c in self._candidates if c.there]
            if there:
                return there[0].number, "no candidate could be compared, so the first one is taken"
            return None, "there is no candidate"
        if self.votes:
            groups = self._groups()
            tie = len(groups) > 1 and len(groups[1]) == len(groups[0])
            said = f"{len(groups[0])} of {len(scored)} say the same"
            chosen = groups[0][0]
        else:
            chosen = min(scored, key=lambda one: (-(one.score or 0.0), one.number))
            tie = sum(one.score == chosen.score for one in scored) > 1
            said = f"the best score, {chosen.score:.3g}, of {len(scored)}"
        parts = [said, "of equal ones the first" if tie else "", self._early]
        return chosen.number, "; ".join(part for part in parts if part)

    def _report(self, one: _Candidate, chosen: int | None) -> Report:
        if one.number == chosen:
            end = End.CHOSEN
        else:
            end = {
                _Stage.SCORED: End.BEATEN, _Stage.UNSCORED: End.UNSCORED, _Stage.FAILED: End.FAILED,
            }.get(one.stage, End.STOPPED)  # fmt: skip
        return Report(one.number, end, one.score, self._spending.cost(one.number), one.reason)


def better(reports: Sequence[Report]) -> tuple[int, int]:
    """Further candidates that were compared, and how many of these were taken: what a search teaches (see `Gain`)."""
    compared = [one for one in reports if one.candidate and one.end in (End.CHOSEN, End.BEATEN)]
    return len(compared), sum(one.end is End.CHOSEN for one in compared)
