"""References: kept types, text inside strings, escapes, and everything that is refused."""

from __future__ import annotations

from decimal import Decimal

import pytest

from forerun.core.canonical import CanonicalError, JsonValue
from forerun.core.errors import CoreError
from forerun.core.plan.references import ReferenceProblem, compile_arguments, text_of, value_of

RESULTS: dict[str, JsonValue] = {
    "1": {"path": [{"name": "Ann"}, {"name": None}], "n": 12345678901234567890, "a key": Decimal("1.50"), "ok": True},
    "2": "plain $1 text",
    "call-7": [1, [2, 3]],
}


def resolved(value: JsonValue) -> JsonValue:
    return compile_arguments({"x": value}).resolve(RESULTS.__getitem__)["x"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$1.n", 12345678901234567890),
        ("$1.path[0].name", "Ann"),
        ("$1.path[1].name", None),
        ("$1.ok", True),
        ("$1.path", [{"name": "Ann"}, {"name": None}]),
        ("${1.n}", 12345678901234567890),
        ('$1["a key"]', Decimal("1.50")),
        ('${1["a key"]}', Decimal("1.50")),
        ("${call-7[1][0]}", 2),
        ("$2", "plain $1 text"),
    ],
)
def test_a_whole_value_keeps_its_type_and_is_not_read_again(text: str, value: JsonValue) -> None:
    found = resolved(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dear $1.path[0].name,", "dear Ann,"),
        ("n=$1.n.", "n=12345678901234567890."),
        ("$1.ok$1.path[1].name", "truenull"),
        (" $2", " plain $1 text"),
        ("${1.n}th, $1.path", '12345678901234567890th, [{"name":"Ann"},{"name":null}]'),
        ("is $2.", "is plain $1 text."),
        ('half is $1["a key"]', "half is 1.5"),
    ],
)
def test_inside_a_text_a_reference_is_text(text: str, value: str) -> None:
    assert resolved(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("$$1", "$1"), ("$$$$", "$$"), ("costs $$5", "costs $5"), ("a$", "a$"), ("$ 5", "$ 5"), ("^x$|$-", "^x$|$-")],
)
def test_two_dollars_are_one_and_a_lonely_one_is_itself(text: str, value: str) -> None:
    template = compile_arguments({"x": text})
    assert template.references == () and template.known == {"x": value}


def test_values_in_lists_and_objects_are_resolved_and_keys_are_not() -> None:
    assert resolved({"$1": ["$1.n", {"deep": "$2"}], "b": 1}) == {
        "$1": [12345678901234567890, {"deep": "plain $1 text"}],
        "b": 1,
    }


def test_what_a_model_wrote_itself_is_literal() -> None:
    template = compile_arguments({"x": "$1 and $$"}, literal=True)
    assert template.references == () and template.resolve(RESULTS.__getitem__) == {"x": "$1 and $$"}


def test_what_depends_on_a_reference_is_not_known_before() -> None:
    template = compile_arguments({"a": "$1", "b": {"c": ["x", "y $2"], "d": 1}, "e": "f"})
    assert template.known == {"a": None, "b": {"c": ["x", None], "d": 1}, "e": "f"}
    assert template.open_names == {"a", "b"}
    assert [(one.task, one.place) for one in template.references] == [("1", "$.a"), ("2", "$.b.c[1]")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("$1.path[2]", "a list of 2 at $.path and has no 2"),
        ("$1.nothing", "an object at $ and has no 'nothing'"),
        ("$2.x", "a text at $ and has no 'x'"),
        ("$1.n[0]", "a number at $.n"),
        ("$1.path.name", "a list of 2 at $.path and has no 'name'"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(text: str, says: str) -> None:
    with pytest.raises(ReferenceProblem, match="the result of task") as caught:
        resolved(text)
    assert says in str(caught.value) and text in str(caught.value)
    assert (caught.value.reason, caught.value.place) == ("no_such_value", "$.x")


@pytest.mark.parametrize("text", ["${", "${}", "${1", "x ${1.}", "${1 }", "${a b}"])
def test_a_broken_brace_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ReferenceProblem) as caught:
        compile_arguments({"q": ["fine", text]})
    assert (caught.value.reason, caught.value.place) == ("bad_reference", "$.q[1]")
    assert "$$" in str(caught.value)


def test_results_become_values_by_their_type() -> None:
    assert value_of(b'{"a":1.50}', "application/json; charset=utf-8") == {"a": Decimal("1.50")}
    assert value_of(b"[1]", "application/vnd.api+json") == [1]
    assert value_of(b"[1]", "text/plain") == "[1]"
    assert value_of("é".encode(), "") == "é"
    with pytest.raises(CoreError, match="neither JSON nor text"):
        value_of(b"\x89PNG", "image/png")
    with pytest.raises(CanonicalError):
        value_of(b"{", "application/json")
    with pytest.raises(CanonicalError):
        value_of(b"\xff", "text/plain")


def test_nesting_has_an_end() -> None:
    value: JsonValue = "$1"
    for _ in range(70):
        value = [value]
    with pytest.raises(ReferenceProblem, match="JSON_DEPTH"):
        compile_arguments({"x": value})


def test_text_of_numbers_is_exact() -> None:
    assert text_of(Decimal("0.10")) == "0.1" and text_of(10**30) == "1" + "0" * 30
