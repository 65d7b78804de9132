"""Whether a draft model is worth what it has to read first: formula, speed of reading, lengths of answers."""

from __future__ import annotations

import pytest

from forerun.core.tokens.depth import PROBE_TOKENS, SHORT_READ, AnswerLengths, Reading, ReadingSpeed
from forerun.core.tokens.depth.reading import PRIOR_ANSWER_TOKENS, probe_gap


def reading(unread: int, left: float, *, token_seconds: float = 0.001, step_seconds: float = 0.03) -> Reading:
    """A step of 30 ms gives two tokens, a pass of 20 ms one: each token that is left gains 5 ms."""
    return Reading(
        unread=unread,
        token_seconds=token_seconds,
        left=left,
        pass_seconds=0.02,
        step_seconds=step_seconds,
        tokens_per_pass=2.0,
    )


def test_a_long_prompt_before_a_short_answer_is_not_read() -> None:
    assert not reading(4_000, 50).pays
    assert (reading(4_000, 50).cost, reading(4_000, 50).gain) == pytest.approx((4.0, 0.25))


def test_a_short_prompt_before_a_long_answer_is_read() -> None:
    assert reading(100, 1_000).pays
    assert reading(4_000, 1_000).pays, "also a long one, where enough is to come"


def test_seconds_decide_and_not_tokens() -> None:
    assert reading(4_000, 50, token_seconds=0.00005).pays
    assert not reading(100, 1_000, step_seconds=0.041).pays, "a step that loses is worth no reading at all"


def test_what_a_step_holds_anyway_costs_nothing_more() -> None:
    assert reading(SHORT_READ, 1, token_seconds=10.0).pays
    assert not reading(SHORT_READ + 1, 1, token_seconds=10.0).pays


def test_the_speed_of_reading_is_learned_by_batch_and_follows_changes() -> None:
    speed = ReadingSpeed()
    assert speed.token_seconds(1) is None
    speed.observe(1, 1_000, 1.0)
    speed.observe(3, 1_000, 4.0)
    assert speed.token_seconds(1) == pytest.approx(0.001)
    assert speed.token_seconds(4) == pytest.approx(0.004), "in powers of two"
    assert speed.token_seconds(64) is None
    for _ in range(20):
        speed.observe(1, 1_000, 3.0)
    assert speed.token_seconds(1) == pytest.approx(0.003, rel=0.02)


def test_a_short_reading_counts_for_less_than_a_long_one() -> None:
    speed = ReadingSpeed()
    speed.observe(1, 17, 0.17)
    speed.observe(1, 1_700, 1.7)
    assert speed.token_seconds(1) == pytest.approx(0.001, rel=0.1)


def test_an_unknown_speed_is_probed_at_once_and_ever_more_rarely_while_no_probe_has_ended() -> None:
    speed = ReadingSpeed()
    due = [passes for passes in range(1_000) if speed.probe_is_due(64, 0.02)]
    least = probe_gap(0.0)
    assert due == [0, 2 * least, 6 * least, 14 * least, 30 * least]
    speed.observe(64, PROBE_TOKENS, 1e-6)
    assert any(speed.probe_is_due(64, 0.02) for _ in range(least)), "one that has ended lets the next one come"


def test_a_known_speed_is_probed_so_rarely_that_it_takes_half_a_per_cent() -> None:
    speed = ReadingSpeed()
    passes, probes = 20_000, 0
    speed.observe(1, PROBE_TOKENS, 0.2)  # ten passes
    for _ in range(passes):
        if speed.probe_is_due(1, 0.02):
            probes += 1
            speed.observe(1, PROBE_TOKENS, 0.2)
    assert 2 <= probes <= 1 + passes * 0.005 / 10


def test_answers_of_a_server_say_how_much_is_left() -> None:
    answers = AnswerLengths()
    assert answers.left(0, 4_000) == PRIOR_ANSWER_TOKENS
    assert answers.left(0, 30) == 30, "never more than may come"
    for _ in range(200):
        answers.ended(20, 0)
    assert answers.left(0, 4_000) == pytest.approx(20), "what was assumed is forgotten"
    assert answers.left(15, 4_000) == pytest.approx(5)
    assert answers.left(40, 4_000) == 40, "one that has outlived all lasts as long again"
    answers.ended(400, 0)
    assert answers.left(25, 4_000) == 375


def test_what_free_drafts_give_is_nothing_that_a_draft_model_gains() -> None:
    answers = AnswerLengths()
    for _ in range(200):
        answers.ended(100, 75)
    assert answers.left(0, 4_000) == pytest.approx(25)
