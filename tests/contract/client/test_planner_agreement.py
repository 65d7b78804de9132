"""The client reads a planner's text as the platform does, and waits for a provider as the platform does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forerun.client._exact import spelled
from forerun.client.compiler._plan_text import END_OF_PLAN, PlanProblem, PlanReader
from forerun.client.compiler._retry_after import retry_after_seconds
from forerun.core.canonical import canonical
from forerun.core.plan.intake import ArrivalError, LlmCompilerReader
from forerun.runtime import retry_after

PARAMETERS = {"search": ("query", "limit"), "divide": ("a", "b"), "note": ("text",), "ping": ()}
Outcome = tuple[list[tuple[str, str, bytes]], list[str], str]
# The platform names what is wrong with a value more finely; to the client it is wrong syntax.
SAME = frozenset({"truncated", "changed", "unknown_parameters", "too_large"})


def theirs(pieces: list[str]) -> Outcome:
    reader, found, problem = LlmCompilerReader(PARAMETERS.get), [], ""
    try:
        for piece in pieces:
            found += reader.feed(piece)
        found += reader.finish()
    except ArrivalError as error:
        problem = error.reason if error.reason in SAME else "syntax"
    return [(one.id, one.tool, canonical(dict(one.arguments))) for one in found], reader.thoughts, problem


def ours(pieces: list[str]) -> Outcome:
    reader, found, problem = PlanReader(PARAMETERS.get), [], ""
    try:
        for piece in pieces:
            found += reader.feed(piece)
        found += reader.finish()
    except PlanProblem as error:
        problem = error.reason
    return [(str(one.number), one.tool, spelled(one.arguments)) for one in found], reader.thoughts, problem


WHOLE = f"""Thought: it's two look-ups (and "one" ratio
1. search("Mont Blanc, \\"height\\" (m)", limit=3)

2. search(query='it\\'s "the" Eiffel tower')
3. divide($1[0].metres, $2["the height"])  # metres
4. note({{"ratio": $3, 'list': [1.50, -2e3, 12345678901234567890, true, False, None], "text": "is $3 or $$3"}})
5. join(){END_OF_PLAN}
"""
LINES = st.sampled_from(
    [
        "Thought: hm", "1. ping()", "2. search('a', 3)", '3. note(text="$1.a")', "4. join()", END_OF_PLAN, "",
        "search('a')", "2. note(a)", "2. note([1,])", '7. note({"a": 1, "a": 2})', "8. note(01)", "8. note(NaN)",
        "9. mystery('a')", "9. mystery(a='a')", "9. search('a', query='b')", "9. search(limit=1, 'a')", "9. ping(1)",
        "10. note('a\\'b')  # why", '10. note("\\ud800")', "10. note($1 + 2)", "10. ping().x", "10. note('",
        "  join( )",
        "11. note({'k': [None, {\"x\": -0.0}]})", "12. note(", '{"a": 1,', " 'b': 2})", "3. ping() <END_OF_PLAN> # x",
        "13. note(" + "[" * 70 + "]" * 70 + ")", "1. Thought: again", "14. note(text=$1[0].b)", "15. note(\u2028)",
    ]
)  # fmt: skip


@given(st.lists(LINES, max_size=8), st.lists(st.integers(1, 20), max_size=30), st.booleans())
@example(WHOLE.split("\n"), [1] * 30, True)
@example(WHOLE.split("\n"), [], False)
def test_a_plan_is_read_as_the_platform_reads_it(lines: list[str], cuts: list[int], end: bool) -> None:
    text = "\n".join(lines) + ("\n" if end else "")
    pieces, position = [], 0
    for cut in cuts:
        pieces.append(text[position : position + cut])
        position += cut
    pieces.append(text[position:])
    assert ours(pieces) == theirs(pieces)


@given(st.text(st.sampled_from("12. notepig(){}[],'\"$=\\ \n#<>jJ:"), max_size=60))
def test_any_text_is_read_as_the_platform_reads_it(text: str) -> None:
    assert ours([text]) == theirs([text])


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "7"}, {"retry-after": " 1.5 "}, {"retry-after": "-3"}, {"retry-after": "NaN"},
        {"retry-after": "inf"}, {"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}, {"retry-after": "soon"},
        {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}, {"retry-after-ms": "1500"}, {"retry-after-ms": "x"},
        {"retry-after": ""}, {}, {"retry-after": "1e3"}, {"retry-after-ms": "20", "retry-after": "9"},
        {"retry-after-ms": "\u00b2"},
    ],
)  # fmt: skip
def test_a_provider_is_waited_for_as_the_platform_does(headers: dict[str, Any]) -> None:
    now = 4_000_000_000.0
    assert retry_after_seconds(headers, now) == retry_after.retry_after_seconds(headers, now)
