"""Where answers end, and what of their text is certain."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.core.errors import CoreError
from forerun.core.tokens.stopping import Answer, Finish, StopRules

PIECES = {1: b"he", 2: b"llo", 3: b" wor", 4: b"ld", 5: b"\xe2\x82", 6: b"\xac", 7: b"\xff", 8: b"l", 9: b"", 10: b"o"}


def answer(**rules: Any) -> Answer:
    return Answer(StopRules(**({"max_tokens": 100} | rules)), lambda token: PIECES[token])


def texts(made: Answer, *tokens: int) -> list[str]:
    return [event.text for event in made.take(tokens)]


def test_text_comes_token_by_token() -> None:
    made = answer()
    assert texts(made, 1, 2, 3) == ["he", "llo", " wor"]
    assert made.generated == 3
    assert made.finish is None


def test_a_stop_token_adds_no_text_and_counts() -> None:
    made = answer(tokens=frozenset({4}))
    events = made.take([1, 4, 2])
    assert [(event.token, event.text, event.finish) for event in events] == [(1, "he", None), (4, "", Finish.STOP)]
    assert made.generated == 2
    assert made.left == 0
    assert made.take([1]) == []


def test_a_stop_string_ends_the_text_before_it_also_across_tokens() -> None:
    made = answer(strings=("o w",))
    events = made.take([1, 2, 3, 4])
    assert "".join(event.text for event in events) == "hell"
    assert [event.token for event in events] == [1, 2, 3]
    assert events[-1].finish is Finish.STOP


def test_text_that_may_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    made = answer(strings=("lox", "hey"))
    assert texts(made, 1, 2) == ["", "hel"]
    assert texts(made, 3) == ["lo wor"]
    made = answer(strings=("llll!",))
    assert texts(made, 8, 8, 8) == ["", "", ""]
    assert texts(made, 10) == ["lllo"]


def test_held_text_comes_with_the_end() -> None:
    made = answer(strings=("lox",), max_tokens=2)
    events = made.take([1, 2, 3])
    assert [event.text for event in events] == ["he", "llo"]
    assert events[-1].finish is Finish.LENGTH
    made = answer(strings=("lox",), tokens=frozenset({4}))
    assert texts(made, 1, 2, 4) == ["he", "l", "lo"]


def test_the_stop_string_that_ends_first_wins_and_may_stay() -> None:
    assert "".join(texts(answer(strings=("llo w", "el")), 1, 2, 3)) == "h"
    assert "".join(texts(answer(strings=("llo w", "el"), keep_string=True), 1, 2, 3)) == "hel"
    assert "".join(texts(answer(strings=("lo", "llo")), 1, 2)) == "he"


def test_a_stop_string_and_the_last_token_together_are_a_stop() -> None:
    events = answer(strings=("ll",), max_tokens=2).take([1, 2])
    assert events[-1].finish is Finish.STOP


def test_characters_may_be_spread_over_tokens() -> None:
    made = answer()
    assert texts(made, 5, 6) == ["", "€"]
    assert texts(made, 7, 1) == ["\ufffd", "he"]
    cut = answer(max_tokens=1)
    assert texts(cut, 5) == ["\ufffd"]


def test_drafts_beyond_the_last_token_are_work_for_nothing() -> None:
    made = answer(max_tokens=5)
    made.take([1, 2])
    assert made.left == 3


@pytest.mark.parametrize("rules", [{"max_tokens": 0}, {"strings": ("",)}, {"strings": ("x",) * 17}])
def test_rules_that_cannot_be_obeyed_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(CoreError) as refused:
        answer(**rules)
    assert refused.value.reason == "invalid_stop"
