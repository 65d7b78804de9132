"""Whatever walks through a grammar writes a valid call: random schemas, random texts, a complete validator as judge."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from forerun.core import limits
from forerun.core.canonical import parse_strict
from forerun.core.errors import CoreError
from forerun.core.grammar.automaton import DEAD, Grammar
from forerun.core.grammar.calls import CLOSING, OPENING, GrammarTool, call_grammar, call_text, tools_of
from forerun.core.schema import ToolSchema

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-50, 50), st.text(max_size=6))
NAMES = st.text(min_size=1, max_size=6)


def numbers() -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number", ["integer", "null"]])},
        optional={
            "minimum": st.one_of(st.integers(-1200, 1200), st.floats(-50, 50)),
            "maximum": st.one_of(st.integers(-1200, 1200), st.floats(-50, 50)),
            "exclusiveMinimum": st.integers(-60, 60),
            "exclusiveMaximum": st.floats(-60, 60),
            "multipleOf": st.sampled_from([1, 5]),
        },
    )
    return bounds


def texts() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 5),
            "maxLength": st.integers(0, 9),
            "pattern": st.just("^a"),
            "format": st.just("date"),
        },
    )


def nested(below: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    lists = st.fixed_dictionaries(
        {"type": st.just("array"), "items": below},
        optional={"minItems": st.integers(0, 2), "maxItems": st.integers(0, 4), "uniqueItems": st.booleans()},
    )
    unions = st.fixed_dictionaries({}, optional={}).flatmap(
        lambda _: st.sampled_from(["anyOf", "oneOf", "allOf"]).flatmap(
            lambda name: st.lists(below, min_size=1, max_size=3).map(lambda branches: {name: branches})
        )
    )
    return st.one_of(lists, unions, objects(below))


@st.composite
def objects(draw: st.DrawFn, below: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, below, max_size=4))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.booleans())
    if draw(st.integers(0, 5)) == 0:
        schema[draw(st.sampled_from(["minProperties", "maxProperties"]))] = draw(st.integers(0, 3))
    return schema


LEAVES = st.one_of(
    numbers(),
    texts(),
    st.sampled_from([{}, True, False, {"type": "boolean"}, {"type": ["string", "null"]}, {"not": {"type": "null"}}]),
    st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.builds(lambda kind, values: {"type": kind, "enum": values},
        st.sampled_from(["string", "integer", "boolean"]), st.lists(SCALARS, min_size=1, max_size=4)),
    SCALARS.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/kind"}),
)  # fmt: skip
SCHEMAS = objects(st.recursive(LEAVES, nested, max_leaves=6)).map(
    lambda schema: {**schema, "$defs": {"kind": {"enum": ["a", "b\\"]}, "self": {"$ref": "#/$defs/self"}}}
)


def written(grammar: Grammar, chance: random.Random, most: int = 4_000) -> str:
    """A random text of the grammar: the bytes that it has to have, and any of those that it may have."""
    state, found = grammar.start, bytearray()
    while not grammar.complete(state):
        ways = [byte for byte, target in enumerate(grammar.row(state)) if target != DEAD]
        assert ways, f"a dead end after {bytes(found)!r}"
        ending = [byte for byte in ways if byte in b'"}],']
        byte = chance.choice(ending if ending and (chance.random() < 0.3 or len(found) > most / 2) else ways)
        found.append(byte)
        state = grammar.row(state)[byte]
        assert len(found) < most
    return found.decode()


def grammar_of(schema: Any, name: str = "f") -> Grammar:
    return call_grammar([GrammarTool(name, ToolSchema(parse(schema)))]).grammar


def parse(schema: Any) -> Any:
    return parse_strict(json.dumps(schema).encode())


def accepts(grammar: Grammar, text: str) -> bool:
    return grammar.complete(grammar.walk(grammar.start, text.encode()))


@settings(max_examples=100, deadline=None)
@given(schema=SCHEMAS, name=NAMES, seed=st.integers(0, 2**32))
def test_every_text_of_a_grammar_is_a_valid_call(schema: dict[str, Any], name: str, seed: int) -> None:
    try:
        grammar = grammar_of(schema, name)
    except CoreError:
        return  # nothing is written, so nothing wrong
    chance = random.Random(seed)
    for _ in range(3):
        text = written(grammar, chance)
        assert text.startswith(OPENING)
        assert text.endswith(CLOSING)
        call = json.loads(text[len(OPENING) : -len(CLOSING)], parse_float=Decimal)
        assert call["name"] == name
        plain = json.loads(text[len(OPENING) : -len(CLOSING)])["arguments"]
        Draft202012Validator(schema).validate(plain)


@settings(max_examples=80, deadline=None)
@given(
    value=st.integers(-3000, 3000),
    least=st.one_of(st.none(), st.integers(-1200, 1200)),
    most=st.one_of(st.none(), st.integers(-1200, 1200)),
)
def test_of_integers_exactly_those_between_the_bounds(value: int, least: int | None, most: int | None) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    schema |= {} if least is None else {"minimum": least}
    schema |= {} if most is None else {"maximum": most}
    whole = {"type": "object", "properties": {"n": schema}, "required": ["n"]}
    inside = (least is None or value >= least) and (most is None or value <= most)
    if least is not None and most is not None and least > most:
        with pytest.raises(CoreError, match="between its bounds"):
            grammar_of(whole)
    else:
        assert accepts(grammar_of(whole), call_text("f", json.dumps({"n": value}))) is inside


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=12), most=st.integers(0, 12))
def test_strings_of_every_language_up_to_their_length(text: str, most: int) -> None:
    whole = {"type": "object", "properties": {"s": {"type": "string", "maxLength": most}}, "required": ["s"]}
    call = call_text("f", json.dumps({"s": text}))
    plain = not any((ord(one) < 0x20 and one not in "\b\f\n\r\t") or ord(one) == 0x7F for one in text)
    assert accepts(grammar_of(whole), call) is (plain and len(text) <= most)


ORDER = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "reason": {"type": "string", "enum": ["lost", "late"]},
        "items": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        "express": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
    },
    "required": ["order_id", "reason"],
}


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ({"order_id": "#W1", "reason": "lost"}, True),
        ({"order_id": "a\"b", "reason": "late", "items": [{"id": 3}, {}], "express": None}, True),
        ({"order_id": "#W1", "reason": "late", "express": True}, True),
        ({"order_id": "#W1"}, False),
        ({"reason": "late", "order_id": "#W1"}, False),
        ({"order_id": "#W1", "reason": "other"}, False),
        ({"order_id": 7, "reason": "late"}, False),
        ({"order_id": "#W1", "reason": "late", "more": 1}, False),
    ],
)  # fmt: skip
def test_what_a_usual_schema_takes(arguments: dict[str, Any], valid: bool) -> None:
    assert accepts(grammar_of(ORDER), call_text("f", json.dumps(arguments))) is valid


def test_what_has_to_follow_is_known_without_a_model() -> None:
    found = grammar_of(ORDER, "cancel_order")
    opening = f'{OPENING}{{"name": "cancel_order", "arguments": {{"order_id": "'
    assert found.forced(found.start).decode() == opening
    behind = found.walk(found.start, f'{opening}#W1", "reason": "lost"}}'.encode())
    assert found.forced(behind).decode() == f"}}{CLOSING}"


def test_tools_that_cannot_be_kept_are_left_out_by_name_and_others_stay() -> None:
    odd = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^a+$"}}, "required": ["x"]}
    loop = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
    tools = [("odd", odd), ("fine", ORDER), ("loop", loop)]
    found = call_grammar([GrammarTool(name, ToolSchema(parse(schema))) for name, schema in tools])
    assert found.names == ("fine",)
    assert found.left_out == {"odd": "$.x: pattern", "loop": "$.x.x: a reference to itself, or to nothing"}
    assert not accepts(found.grammar, call_text("odd", '{"x": "aa"}'))
    with pytest.raises(CoreError, match=r"odd: \$\.x: pattern"):
        call_grammar([GrammarTool("odd", ToolSchema(parse(odd)))])


def test_an_optional_part_that_cannot_be_kept_is_left_out() -> None:
    whole = {"type": "object", "properties": {"x": {"pattern": "^a+$"}, "y": {"type": "integer"}}, "required": ["y"]}
    assert accepts(grammar_of(whole), call_text("f", '{"y": 1}'))
    assert not accepts(grammar_of(whole), call_text("f", '{"x": "aa", "y": 1}'))


def test_a_part_that_was_given_up_leads_nobody_into_it() -> None:
    item = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"pattern": "^a"}}, "required": ["a", "b"]}
    whole = {"type": "object", "properties": {"x": {"type": "array", "items": item}}, "required": ["x"]}
    found = grammar_of(whole)
    assert found.forced(found.start).decode() == call_text("f", '{"x": []}')


def test_grammars_are_bounded() -> None:
    large = {"type": "object", "properties": {"x": {"enum": ["a" * limits.GRAMMAR_STATES]}}, "required": ["x"]}
    found = call_grammar([GrammarTool("large", ToolSchema(parse(large))), GrammarTool("small", ToolSchema({}))])
    assert found.names == ("small",)
    assert "GRAMMAR_STATES" in found.left_out["large"]
    with pytest.raises(CoreError, match="GRAMMAR_STATES"):
        grammar_of(large)
    long = {"type": "object", "properties": {"x": {"type": "string", "maxLength": 10_000}}, "required": ["x"]}
    for size, inside in ((limits.GRAMMAR_STRING_CHARS, True), (limits.GRAMMAR_STRING_CHARS + 1, False)):
        assert accepts(grammar_of(long), call_text("f", json.dumps({"x": "a" * size}))) is inside
    nulls = {"type": "array", "items": {"type": "null"}}
    whole = {"type": "object", "properties": {"x": nulls}, "required": ["x"]}
    assert accepts(grammar_of(whole), call_text("f", json.dumps({"x": [None] * 50})))
    many = {"type": "object", "properties": {"x": {**nulls, "maxItems": 50}}, "required": ["x"]}
    for size, inside in ((limits.GRAMMAR_LIST_ITEMS, True), (limits.GRAMMAR_LIST_ITEMS + 1, False)):
        assert accepts(grammar_of(many), call_text("f", json.dumps({"x": [None] * size}))) is inside


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"function": {}}]', '[{"function": {"name": ""}}]'])
def test_what_is_no_list_of_tools_is_refused(text: str) -> None:
    with pytest.raises(CoreError):
        call_grammar(tools_of(text))


def test_one_tool_of_a_list() -> None:
    text = json.dumps([{"type": "function", "function": {"name": name, "parameters": ORDER}} for name in "ab"])
    assert call_grammar(tools_of(text, "b")).names == ("b",)
    with pytest.raises(CoreError, match="no tool 'c'"):
        tools_of(text, "c")
