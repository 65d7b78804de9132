"""A predictor that loses, overstates or never forgets: calibrated, honest about ends, quick to follow a change."""

import random

import pytest

from forerun.predictor.engine.engine import Engine, Prediction
from forerun.predictor.engine.history import (
    Asked,
    AssistantText,
    CallFinished,
    CallsAsked,
    ModelStarted,
    SessionClosed,
    SessionOpened,
    UserTurn,
)

CHANGE = 1_000
TURNS = 2_000
SETTLED = 200
TOLERANCE = 0.05


class Runs:
    """Sessions that call A, then end (30 %), or call B (90 % of the rest; C after the change), or D."""

    def __init__(self, seed: int) -> None:
        self.engine = Engine()
        self._random = random.Random(seed)
        self.after_a: list[Prediction] = []
        self.came: list[str] = []

    def _call(self, key: tuple[str, str, str], turn: int, tool: str) -> None:
        self.engine.observe(*key, CallsAsked(turn, (Asked(0, tool, {"customer": "C-17"}),)))
        self.engine.observe(*key, CallFinished(turn, 0, ok=True, observation=b'{"fine":true}', seconds=0.2))

    def turn(self, number: int) -> None:
        key = ("tenant", "agent", f"session-{number}")
        self.engine.observe(*key, SessionOpened(("A", "B", "C", "D")))
        self.engine.observe(*key, UserTurn("please look at C-17"))
        self.engine.observe(*key, ModelStarted())
        self._call(key, 1, "A")
        self.engine.observe(*key, ModelStarted())
        self.after_a.append(self.engine.predict(*key))
        draw = self._random.random()
        usual = "B" if number < CHANGE else "C"
        outcome = "" if draw < 0.3 else usual if draw < 0.93 else "D"
        self.came.append(outcome)
        if outcome:
            self._call(key, 2, outcome)
            self.engine.observe(*key, ModelStarted())
        self.engine.observe(*key, AssistantText("done"))
        self.engine.observe(*key, SessionClosed())

    def probability(self, number: int, tool: str) -> float:
        return next((c.probability for c in self.after_a[number].candidates if c.tool == tool), 0.0)


@pytest.fixture(scope="module")
def runs() -> Runs:
    runs = Runs(seed=11)
    for number in range(TURNS):
        runs.turn(number)
    return runs


@pytest.mark.parametrize(("start", "tool"), [(SETTLED, "B"), (CHANGE + SETTLED, "C")])
def test_reported_probability_is_within_five_points_of_the_truth(runs: Runs, start: int, tool: str) -> None:
    end = start + CHANGE - SETTLED
    off = [abs(runs.probability(number, tool) - 0.63) for number in range(start, end)]
    reported = sum(runs.probability(number, tool) for number in range(start, end)) / len(off)
    happened = runs.came[start:end].count(tool) / len(off)
    assert abs(reported - happened) < TOLERANCE / 2
    assert sum(off) / len(off) < TOLERANCE


def test_a_run_that_ends_is_an_outcome_with_a_calibrated_probability(runs: Runs) -> None:
    for start in (SETTLED, CHANGE + SETTLED):
        window = range(start, start + CHANGE - SETTLED)
        reported = sum(runs.after_a[number].no_call_probability for number in window) / len(window)
        happened = sum(not runs.came[number] for number in window) / len(window)
        assert abs(reported - happened) < TOLERANCE


def test_a_candidate_that_was_good_is_given_up_within_thirty_turns_of_a_change(runs: Runs) -> None:
    assert runs.probability(CHANGE - 1, "B") > 0.5
    assert all(runs.probability(number, "B") < 0.3 for number in range(CHANGE + 30, TURNS))


def test_the_new_pattern_is_believed_soon(runs: Runs) -> None:
    assert runs.probability(CHANGE + 60, "C") > 0.45


def test_a_cold_site_has_little_evidence_and_says_so(runs: Runs) -> None:
    evidence = [max((c.evidence for c in p.candidates), default=0.0) for p in runs.after_a[:20]]
    assert all(value <= number for number, value in enumerate(evidence))
    assert evidence[0] == 0.0
    assert max(c.evidence for c in runs.after_a[CHANGE].candidates) > 300


def test_tools_that_were_not_declared_are_never_candidates() -> None:
    engine = Engine()
    for number in range(60):
        key = ("tenant", "agent", f"session-{number}")
        engine.observe(*key, SessionOpened(("A",)))
        engine.observe(*key, UserTurn("go"))
        for turn, tool in enumerate(("A", "made_up", "A"), start=1):
            engine.observe(*key, ModelStarted())
            assert {candidate.tool for candidate in engine.predict(*key).candidates} <= {"A"}
            engine.observe(*key, CallsAsked(turn, (Asked(0, tool, {}),)))
            engine.observe(*key, CallFinished(turn, 0, ok=tool == "A", observation=b""))
        engine.observe(*key, SessionClosed())
