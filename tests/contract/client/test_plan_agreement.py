"""Plans that run around the platform resolve their references as the platform does, to the last digit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.client import _exact, _plan_local, _references
from forerun.core import limits
from forerun.core.canonical import CanonicalError, canonical, parse_strict
from forerun.core.errors import CoreError
from forerun.core.plan import references as core

NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from(
        ["-0", "-0.0", "0.0", "1.0", "1e0", "1e21", "1e22", "1.10", "123e-9", "9007199254740993", "0.1e-6"]
    ),
    st.decimals(allow_nan=False, allow_infinity=False, places=12),
    st.integers(min_value=10**700, max_value=10**701),
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def _number(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


@st.composite
def json_texts(draw: st.DrawFn, levels: int = 3) -> str:
    """JSON texts, with every spelling of numbers and the keys that sort differently in UTF-16."""
    kind = draw(st.sampled_from(["number", "text", "word", *(["list", "object"] if levels else [])]))
    if kind == "number":
        return _number(draw(NUMBERS))
    if kind == "text":
        return json.dumps(draw(TEXTS), ensure_ascii=draw(st.booleans()))
    if kind == "word":
        return draw(st.sampled_from(["null", "true", "false"]))
    items = draw(st.lists(json_texts(levels=levels - 1), max_size=4))
    if kind == "list":
        return "[" + ", ".join(items) + "]"
    keys = draw(st.lists(st.one_of(TEXTS, st.sampled_from(["\ue000", "\U0001f600", "a"])), unique=True, max_size=4))
    return "{" + ",".join(f"{json.dumps(key)}:{item}" for key, item in zip(keys, items, strict=False)) + "}"


@given(json_texts())
def test_a_value_has_the_platforms_spelling(text: str) -> None:
    content = text.encode()
    try:
        expected = canonical(parse_strict(content))
    except CanonicalError:
        with pytest.raises(_exact.NotExact):
            _exact.parse_exact(content)
        return
    assert _exact.spelled(_exact.parse_exact(content)) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b'{"a":1,"a":2}', b"NaN", b"-Infinity", b"1 2", b'"\\ud800"', b"\xff", b"\xef\xbb\xbf1",
        b"[" * 65 + b"]" * 65, b"[" * 5000, b"1" * 20_001, b"1e100001", b"1e" + b"9" * 20, b"'a'",
    ],
)  # fmt: skip
def test_what_the_platform_refuses_is_refused(content: bytes) -> None:
    with pytest.raises(CanonicalError):
        canonical(parse_strict(content))
    with pytest.raises(_exact.NotExact):
        _exact.parse_exact(content)


@pytest.mark.parametrize("content", [b"[" * 64 + b"]" * 64, b"1" * 20_000, b"1e100000", b" 1 "])
def test_what_the_platform_takes_is_taken(content: bytes) -> None:
    assert _exact.spelled(_exact.parse_exact(content)) == canonical(parse_strict(content))


RESULTS = {"1": b'{"a": [1.10, {"b c": "x"}], "n": 9007199254740993}', "t-2": b'"plain"', "3": b"[true, null]"}
PIECES = st.sampled_from(
    [
        "$1", "$1.a", "$1.a[0]", '$1.a[1]["b c"]', "${1.n}", "${t-2}", "$3[1]", "$3[7]", "$1.none", "$9", "$$", "$",
        "$ 1", "${", "${x", " and ", "\\", "é", '$1["', "$1.a[00]", "$t-2", "$_x",
    ]
)  # fmt: skip
STRINGS = st.lists(PIECES, min_size=1, max_size=4).map("".join)


def _theirs(arguments: dict[str, Any]) -> tuple[tuple[str, ...], bytes] | str:
    try:
        template = core.compile_arguments(arguments)
        tasks = tuple(dict.fromkeys(one.task for one in template.references))
        resolved = template.resolve(lambda task: core.value_of(RESULTS[task], "application/json"))
        return tasks, canonical(resolved)
    except KeyError:
        return "unknown"
    except CoreError as error:
        return error.reason


def _ours(arguments: dict[str, Any]) -> tuple[tuple[str, ...], bytes] | str:
    try:
        tasks = _references.targets(arguments)
        resolved = _references.resolve(arguments, lambda task: _references.value_of(RESULTS[task], "application/json"))
        return tasks, _exact.spelled(resolved)
    except KeyError:
        return "unknown"
    except _references.ReferenceProblem as error:
        return error.reason


@given(st.lists(STRINGS, min_size=1, max_size=3))
def test_references_are_those_of_the_platform(texts: list[str]) -> None:
    arguments: dict[str, Any] = {"first": texts[0], "rest": [{"$1": text} for text in texts[1:]]}
    assert _ours(arguments) == _theirs(arguments)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"1.0", "application/json"), (b"1.0", "text/plain; charset=utf-8"), (b"1.0", ""),
        (b"{}", "application/x+json"),
        (b"{", "application/json"), (b"\xff", "text/plain"), (b"x", "image/png"), (b"x", "Application/JSON"),
    ],
)  # fmt: skip
def test_the_value_of_a_result_is_that_of_the_platform(content: bytes, media_type: str) -> None:
    try:
        expected = core.value_of(content, media_type)
    except CoreError:
        with pytest.raises(_references.ReferenceProblem):
            _references.value_of(content, media_type)
        return
    assert _references.value_of(content, media_type) == expected


@given(STRINGS)
def test_a_renamed_reference_means_the_same_task(text: str) -> None:
    renamed = _references.renamed({"a": text}, {"1": "other", "t-2": "3"})
    assert isinstance(renamed, dict)
    try:
        before = _references.targets({"a": text})
    except _references.ReferenceProblem:
        return
    names = {"1": "other", "t-2": "3"}
    assert _references.targets(renamed) == tuple(dict.fromkeys(names.get(task, task) for task in before))
    values = {"other": RESULTS["1"], **RESULTS}

    def value(table: dict[str, bytes], task: str) -> Any:
        return _references.value_of(table[task], "application/json")

    if "t-2" not in before and set(before) <= set(values):
        try:
            expected = _references.resolve({"a": text}, lambda task: value(values, task))
        except _references.ReferenceProblem:
            return
        assert _references.resolve(renamed, lambda task: value(values, task)) == expected


def test_bounds_are_those_of_the_platform() -> None:
    assert _exact.NUMBER_EXPONENT == limits.NUMBER_EXPONENT
    assert _plan_local.PLAN_TASKS == limits.PLAN_TASKS
    assert _plan_local.REPLANS == limits.REPLANS
