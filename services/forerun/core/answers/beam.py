"""Beam search: an answer is written piece by piece, and of several continuations the best beginnings are kept. Pure.

At each step every kept beginning that has not ended is gone on with `expand` times; all that is there is scored, what
says the same is kept once, and the best `count` go on. It ends when all kept ones have ended, after `steps`, or when
nothing more may be spent; what is best then and has not ended is generated to its end, for which money is left over
from the start. Ties go to what was launched first. The first beginning is always launched, where the cap allows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from forerun.core.answers.model import Decided, End, Generate, Limit, Price, Report, Score, Step, Stop, Terms, patience
from forerun.core.answers.spending import Spending

_GENERATION, _SCORE = "generation", "score"


@dataclass(slots=True)
class _Node:
    number: int
    parent: int | None
    launched_at: float
    key: str = ""
    there: bool = False
    ended: bool = False
    score: float | None = None
    busy: str = _GENERATION
    stopping: bool = False
    reason: str = ""


@dataclass(slots=True)
class Beam:
    """One search.

    Attributes:
        terms: What holds for it; `count` is the width, `generate` the price of one piece.
        expand: Continuations of each kept beginning.
        steps: Pieces of an answer, at most.
        finish: Price of generating a beginning to its end.
        over: It has decided.
    """

    terms: Terms
    expand: int = 2
    steps: int = 8
    finish: Price = field(default_factory=Price)
    over: bool = False
    _nodes: list[_Node] = field(default_factory=list)
    _kept: list[_Node] = field(default_factory=list)
    _level: list[_Node] = field(default_factory=list)
    _waiting: list[int | None] = field(default_factory=list)
    _step: int = 0
    _finishing: _Node | None = None
    _spending: Spending = field(init=False)
    _now: float = 0.0
    _longest: float = math.inf
    _closed: bool = False
    _expired: bool = False
    _early: str = ""

    def __post_init__(self) -> None:
        """Opens the purse."""
        self._spending = Spending(self.terms.max_cost, self.terms.worth)

    @property
    def spent(self) -> float:
        """Money so far."""
        return self._spending.spent

    def begin(self, now: float) -> list[Step]:
        """Launches the first beginnings."""
        self._now = now
        self._waiting = [None] * self.terms.count
        return self._go_on()

    def again(self, candidate: int) -> bool:
        """Takes the price of a candidate once more; False where the cap does not allow it.

        Asked before a request is sent again of which an earlier attempt may have cost its price.
        """
        if self._finishing is not None and candidate == self._finishing.number:
            return self._spending.reserve(_GENERATION, candidate, self.finish)
        return self._spending.reserve(_GENERATION, candidate, self.terms.generate, beside=self.finish.most)

    def next_time(self) -> float:
        """When `tick` is due: a beginning takes much longer than those of its step that are there."""
        running = [one.launched_at for one in self._level if one.busy and not one.stopping]
        alone = self._closed or self._finishing is not None or not running
        return math.inf if alone else max(running) + patience(self._longest)

    def tick(self, now: float) -> list[Step]:
        """Time has passed: what is still not there is left out of its step."""
        if self.over or now < self.next_time():
            return []
        self._now = now
        self._waiting.clear()
        return self._stop_level() + self._go_on()

    def expire(self) -> list[Step]:
        """There is no time left: what is there is taken."""
        if self.over or self._expired:
            return []
        self._closed = self._expired = True
        self._early = "the time was over"
        self._waiting.clear()
        return self._stop_level() + self._go_on()

    def forbid(self, limit: Limit) -> list[Step]:
        """Only one answer is allowed from now on: the best beginning that is there, else the first, and its end."""
        if self.over or self._closed or self._finishing is not None:
            return []
        self._closed, self._early, self._spending.limited_by = True, limit.value, limit
        self._waiting.clear()
        there = any(one.there for one in self._nodes)
        kept = None if there else next((one for one in self._nodes if one.busy and not one.stopping), None)
        return self._stop_level(kept) + self._go_on()

    def generated(
        self, candidate: int, key: str, cost: float, now: float, *, ended: bool = True, score: Price | None = None
    ) -> list[Step]:
        """A piece is there; `ended` where the answer is complete with it, `score` as in `BestOf`."""
        self._now = now
        one = self._settle(_GENERATION, candidate, cost)
        if one is None:
            return self._go_on()
        one.key, one.there, one.ended, one.busy = key, True, ended, ""
        if one is self._finishing:
            one.ended = True
            return self._go_on()
        if self._closed:  # it is all that there will be (see `forbid`)
            return self._go_on()
        if not self._spending.reserve(_SCORE, candidate, score or self.terms.score, beside=self.finish.most):
            return self._go_on()
        one.busy = _SCORE
        return [Score(candidate), *self._go_on()]

    def scored(self, candidate: int, score: float | None, cost: float, now: float) -> list[Step]:
        """A beginning was judged; None or a score that is none in 0..1 leaves it without."""
        self._now = now
        one = self._settle(_SCORE, candidate, cost)
        if one is None:
            return self._go_on()
        one.busy = ""
        if score is not None and 0.0 <= score <= 1.0:  # also refuses NaN
            one.score = score
            taken = now - one.launched_at
            self._longest = taken if math.isinf(self._longest) else max(self._longest, taken)
        if one.ended and one.score is not None and self.terms.stop_at is not None and one.score >= self.terms.stop_at:
            self._closed, self._early = True, f"a score of {one.score:.3g} is good enough"
            self._waiting.clear()
            return self._stop_level() + self._go_on()
        return self._go_on()

    def failed(self, candidate: int, reason: str, cost: float, now: float) -> list[Step]:
        """A piece could not be generated."""
        self._now = now
        one = self._settle(_GENERATION, candidate, cost)
        if one is not None:
            one.busy, one.reason = "", reason
        return self._go_on()

    def stopped(self, candidate: int, cost: float) -> list[Step]:
        """What was under way for a beginning has ended, because it was told to stop."""
        self._settle(_GENERATION, candidate, cost)
        self._spending.settle(_SCORE, candidate, 0.0)
        return self._go_on()

    # ------------------------------------------------------------ inside

    def _settle(self, what: str, candidate: int, cost: float) -> _Node | None:
        self._spending.settle(what, candidate, cost)
        one = self._nodes[candidate]
        if one.stopping:
            one.stopping, one.busy = False, ""
            return None
        return one if one.busy == what else None

    def _stop_level(self, kept: _Node | None = None) -> list[Step]:
        steps: list[Step] = []
        for one in self._nodes:
            if one.busy and not one.stopping and one is not kept:
                one.stopping = True
                steps.append(Stop(one.number))
        return steps

    def _go_on(self) -> list[Step]:
        steps: list[Step] = []
        while not self.over:
            while self._launches(steps):
                pass
            if any(one.busy for one in self._nodes):
                return steps
            if self._finishing is not None or self._closed or not self._next_step():
                self._end(steps)
        return steps

    def _launches(self, steps: list[Step]) -> bool:
        running = sum(bool(one.busy) for one in self._level)
        if not self._waiting or running >= max(1, self.terms.at_once):
            return False
        number, first = len(self._nodes), not self._nodes
        expected = self.terms.generate.expected + self.terms.score.expected
        # A piece of a whole answer: the cap has to allow the end of it, too.
        if (not first and not self._spending.pays(expected)) or not self._spending.reserve(
            _GENERATION, number, self.terms.generate, beside=self.finish.most
        ):
            self._waiting.clear()
            return False
        node = _Node(number, self._waiting.pop(0), self._now)
        self._nodes.append(node)
        self._level.append(node)
        steps.append(Generate(number, node.parent, whole=False))
        return True

    def _next_step(self) -> bool:
        """Keeps the best of what is there, and goes on with them; False where there is nothing to go on with."""
        fresh = [one for one in self._level if one.there]
        if not fresh:
            return False  # a step of which nothing came leaves what was there before it
        self._level = []
        self._step += 1
        known: set[str] = set()
        best: list[_Node] = []
        ended = [one for one in self._kept if one.ended]
        for one in sorted(ended + fresh, key=_rank):
            if one.key not in known and len(best) < self.terms.count:
                known.add(one.key)
                best.append(one)
        self._kept = best
        going_on = [one for one in best if not one.ended]
        if self._step >= self.steps:
            return False
        # In turn, so that a cap leaves each of them a continuation before it gives one a second.
        self._waiting = [one.number for _ in range(self.expand) for one in going_on]
        return True

    def _end(self, steps: list[Step]) -> None:
        """Takes the best, or has it generated to its end."""
        best = self._best()
        if best is None or best.ended or self._finishing is not None or self._expired:
            self.over = True
            steps.append(self._decided(best))
            return
        number = len(self._nodes)
        if not self._spending.reserve(_GENERATION, number, self.finish):
            self.over = True
            steps.append(self._decided(best))
            return
        self._finishing = _Node(number, best.number, self._now)
        self._nodes.append(self._finishing)
        steps.append(Generate(number, best.number, whole=True))

    def _best(self) -> _Node | None:
        if self._finishing is not None and self._finishing.there:
            return self._finishing
        there = [one for one in self._nodes if one.there]
        kept = [one for one in [*self._kept, *self._level] if one.there]
        ended = [one for one in there if one.ended]
        if self._closed and ended:
            return min(ended, key=_rank)
        return min(kept, key=_rank, default=None)

    def _decided(self, best: _Node | None) -> Decided:
        why = "there is no candidate" if best is None else self._why(best)
        lineage: set[int] = set()
        one = best
        while one is not None:
            lineage.add(one.number)
            one = None if one.parent is None else self._nodes[one.parent]
        reports = tuple(self._report(node, lineage) for node in self._nodes)
        chosen = None if best is None else best.number
        return Decided(chosen, why, reports, self._spending.spent, self._spending.limited_by)

    def _why(self, best: _Node) -> str:
        judged = best
        if best is self._finishing and best.parent is not None:
            judged = self._nodes[best.parent]
        said = "no beginning could be compared, so the first one is taken"
        if judged.score is not None:
            said = f"the best score, {judged.score:.3g}, after {max(1, self._step)} steps"
        parts = [said, "generated to its end" if best is self._finishing else "", self._early]
        return "; ".join(part for part in parts if part)

    def _report(self, one: _Node, lineage: set[int]) -> Report:
        if one.number in lineage:
            end = End.CHOSEN
        elif one.reason:
            end = End.FAILED
        elif not one.there:
            end = End.STOPPED
        else:
            end = End.UNSCORED if one.score is None else End.BEATEN
        return Report(one.number, end, one.score, self._spending.cost(one.number), one.reason)


def _rank(one: _Node) -> tuple[float, int]:
    """Best first: by score, those without one last, ties by their launch."""
    return (-one.score if one.score is not None else 1.0, one.number)
