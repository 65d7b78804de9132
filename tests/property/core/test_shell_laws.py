"""The judge of command lines, on random ones."""

from __future__ import annotations

import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.shell import DEFAULT_RULES, CommandClass, classify
from forerun.core.taint import TrustedText, tainted

pieces = st.sampled_from(
    [
        *("ls", "cat", "find", "sed", "sort", "git", "log", "push", "curl", "rm", "-o", "-i", "-delete", "'s/a/b/'"),
        *("|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1", "/dev/null", "f", "$X", "$(", ")", "`", "'", '"', "\\"),
        *("#", "\n", "{", "}", "*", "<<", "EOF", "xargs", "env", "A=1", "(", "!"),
    ]
)
lines = st.lists(pieces, max_size=8).map(" ".join) | st.text(max_size=30)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=8)
fast = settings(max_examples=100, deadline=None)


@fast
@given(lines)
def test_every_text_gets_an_answer(line: str) -> None:
    assert classify(line, DEFAULT_RULES).reason


@fast
@given(lines)
def test_a_command_that_writes_makes_any_line_write(line: str) -> None:
    for combined in (f"rm x; {line}", f"rm x | {line}", f"rm x && {line}", f"rm x\n{line}"):
        assert classify(combined, DEFAULT_RULES).kind is not CommandClass.READ_ONLY


@fast
@given(lines)
def test_a_command_that_reaches_out_in_front_is_always_found(line: str) -> None:
    assert classify(f"curl x; {line}", DEFAULT_RULES).kind is CommandClass.OUTWARD


@fast
@given(st.lists(words, max_size=4))
def test_quoted_arguments_of_a_plain_reader_are_only_data(arguments: list[str]) -> None:
    verdict = classify(shlex.join(["cat", *arguments]), DEFAULT_RULES)
    assert verdict.kind is CommandClass.READ_ONLY, verdict.reason


@fast
@given(words, words)
def test_only_what_was_said_is_trusted(said: str, other: str) -> None:
    known = TrustedText()
    known.add_value({"q": said})
    assert tainted({"q": said}, known) == []
    if other and other not in said:
        assert tainted({"q": other}, known) == ["$.q"] or other == "q"
