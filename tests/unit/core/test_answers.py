"""Scorers of candidates, what further candidates are worth, and the money of one search."""

from __future__ import annotations

import math

import pytest

from forerun.core.answers import AnswerPolicy, Gain, Gains, Limit, Price, Rules, Worth, judgement, vote
from forerun.core.answers.spending import Spending


@pytest.mark.parametrize(
    ("one", "other", "behind", "same"),
    [
        ("42", " 42\n", "", True),
        ("forty  two", "forty two", "", True),
        ("e\u0301", "\u00e9", "", True),
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}', "", True),
        ('{"a": 1}', '{"a": 1.0}', "", False),
        ("42", "42.", "", False),
        ("Paris", "paris", "", False),
        ("so Answer: 41, no Answer: 42", "Answer:42", "Answer:", True),
        ("42", "Answer: 42", "Answer:", True),
    ],
)
def test_votes_are_equal_for_answers_that_say_the_same(one: str, other: str, behind: str, same: bool) -> None:
    assert (vote(one, behind) == vote(other, behind)) is same


@pytest.mark.parametrize(
    ("words", "score"),
    [
        ('{"score": 0.7}', 0.7), ('{"score": 1, "why": "x"}', 1.0), ('```json\n{"score": 0}\n```', 0.0),
        ('{"score": 1.01}', None), ('{"score": -0.1}', None), ('{"score": "1"}', None), ('{"score": true}', None),
        ('{"score": NaN}', None), ('{"score": 1e400}', None), ("score: 1", None), ('I say {"score": 1}', None),
        ("[1]", None), ("", None), ("[" * 4_000, None), ('{"score": 1}' + " " * 5_000, None),
    ],
)  # fmt: skip
def test_only_a_number_in_range_in_a_json_object_is_a_judgement(words: str, score: float | None) -> None:
    assert judgement(words) == score


def test_rules_give_the_share_that_holds() -> None:
    rules = Rules(json_fields=("id", "name"), contains=("7",), lacks=("sorry",), max_chars=30)
    assert rules.score('{"id": 7, "name": "x"}') == 1.0
    assert rules.score('{"id": 7}') == pytest.approx(5 / 6)
    assert rules.score("sorry") == pytest.approx(1 / 6)
    assert Rules(json=True).score('{"a": 1, "a": 2}') == 0.0, "strict JSON has no name twice"
    assert Rules().score("anything") == 1.0


def test_a_further_candidate_has_to_be_worth_all_of_its_price() -> None:
    """With everything it costs as extra: P * worth >= (2 - alpha) * price."""
    certain = Gain(prior=1.0, tried=1e9, better=1e9)
    assert Worth(2.0, certain, alpha=0.0).admits(0.999) and not Worth(2.0, certain, alpha=0.0).admits(1.001)
    assert Worth(2.0, certain, alpha=1.0).admits(1.999) and not Worth(2.0, certain, alpha=1.0).admits(2.001)
    assert Worth(0.0, certain).admits(0.0) and not Worth(0.0, certain).admits(1e-9)


def test_gain_begins_with_what_is_expected_and_follows_what_is_seen() -> None:
    gain = Gain(prior=0.5)
    start = gain.lower_bound
    assert 0.3 < start < 0.5
    for _ in range(100):
        gain.observe(tried=3, better=0)
    assert gain.lower_bound < 0.03
    for _ in range(300):
        gain.observe(tried=1, better=1)
    assert gain.lower_bound > 0.6
    assert gain.tried < 1 / (1 - 0.995) + 3, "old searches fade"


def test_what_is_known_of_gains_is_bounded() -> None:
    gains = Gains(bound=2)
    first = gains.of("t", "a", "m", 0.25)
    gains.of("t", "b", "m", 0.25)
    assert gains.of("t", "a", "m", 0.25) is first
    gains.of("t", "c", "m", 0.25)
    assert list(gains.table) == [("t", "a", "m"), ("t", "c", "m")]


def test_money_is_reserved_at_its_most_and_settled_at_what_it_was() -> None:
    spending = Spending(10.0, Worth(money=100.0))
    assert spending.reserve("g", 0, Price(1.0, 6.0))
    assert not spending.reserve("g", 1, Price(1.0, 6.0)) and spending.limited_by is Limit.PRICE
    spending.settle("g", 0, 2.0)
    assert spending.reserve("g", 1, Price(1.0, 6.0), beside=2.0)
    spending.settle("g", 1, 9.0)  # more than was reserved: booked, and it blocks what comes after it
    assert (spending.spent, spending.cost(1)) == (11.0, 9.0)
    assert not spending.reserve("g", 2, Price(0.0, 0.0))


def test_what_is_done_again_is_reserved_beside_what_it_may_have_cost_already() -> None:
    spending = Spending(10.0, Worth(money=100.0))
    assert spending.reserve("g", 0, Price(1.0, 4.0)) and spending.reserve("g", 0, Price(1.0, 4.0))
    assert not spending.reserve("g", 0, Price(1.0, 4.0)) and not spending.reserve("g", 1, Price(1.0, 4.0))
    spending.settle("g", 0, 5.0)
    assert spending.reserve("g", 1, Price(1.0, 4.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_candidates": 0}, {"max_candidates": 33}, {"max_cost": -1.0}, {"max_cost": math.nan}, {"worth": -1.0},
        {"expected_gain": 1.1},
    ],
)  # fmt: skip
def test_a_policy_of_answers_is_checked(wrong: dict[str, float]) -> None:
    assert AnswerPolicy().problems() == []
    assert len(AnswerPolicy(**wrong).problems()) == 1  # type: ignore[arg-type]
