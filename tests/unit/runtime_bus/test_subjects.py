"""Names: reversible, and safe for any id."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.runtime import subjects
from forerun.runtime.errors import InvalidArgument

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


@given(TEXT)
def test_every_id_becomes_one_safe_token_and_back(identifier: str) -> None:
    token = subjects.token(identifier)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", token)
    assert subjects.identifier(token) == identifier


@given(TEXT, TEXT)
def test_different_ids_have_different_tokens(one: str, other: str) -> None:
    assert (subjects.token(one) == subjects.token(other)) == (one == other)


@given(TEXT)
def test_every_key_can_be_read_back(key: str) -> None:
    assert subjects.decode_key(subjects.encode_key(key)) == key


@given(TEXT, TEXT)
def test_the_filter_of_a_prefix_lets_every_key_with_it_pass(prefix: str, rest: str) -> None:
    assert subjects.matches(subjects.key_filter(prefix), subjects.encode_key(prefix + rest))


@pytest.mark.parametrize("token", ["", "a.b", "=", "==", "=2", "=2e", "=41", "a=", "=FF", "a b", "ü"])
def test_what_is_no_token_is_refused(token: str) -> None:
    if token == "=":
        assert subjects.identifier(token) == ""
        return
    with pytest.raises(InvalidArgument):
        subjects.identifier(token)


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        subjects.token("\ud800")


def test_a_journals_subject_keeps_its_ids_apart() -> None:
    assert subjects.event(7, "ten.ant", "*", "") == "forerun.v1.event.7.ten=2Eant.=2A.="


def test_partitions_are_stable_and_even() -> None:
    assert [subjects.partition("tenant", f"agent-{n}", partitions=8) for n in range(6)] == [7, 7, 5, 7, 3, 0]
    counts = [0] * 4
    for number in range(4000):
        counts[subjects.partition("t", str(number), partitions=4)] += 1
    assert min(counts) > 900


def test_a_tenant_and_agent_cannot_be_confused_with_another_pair() -> None:
    pairs = [("a.b", "c"), ("a", "b.c"), ("a", "b"), ("", "a.b")]
    assert len({subjects.event(0, tenant, agent, "s") for tenant, agent in pairs}) == len(pairs)


@pytest.mark.parametrize(
    "pattern, subject, matches",
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b.>", "a.b.c.d", True),
        (">", "a", True),
    ],
)
def test_wildcards(pattern: str, subject: str, matches: bool) -> None:
    assert subjects.matches(pattern, subject) is matches


def test_subjects_of_a_partition_lie_in_its_pattern_only() -> None:
    pattern = subjects.events_of_partition(3)
    assert subjects.matches(pattern, subjects.event(3, "t", "a", "s"))
    assert not subjects.matches(pattern, subjects.event(31, "t", "a", "s"))
