"""Arguments that certainly fit: found for what most tools declare, and never where a validator would refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.canonical import parse_strict
from forerun.runtime.errors import InvalidArgument
from forerun.runtime.tool_servers import checked_schema, validator_of
from forerun.sandbox.fitting import certainly_fits
from forerun.sandbox.tools import PythonEndpoint, Server, tool

_SEARCH: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "additionalProperties": False,
    "required": ["from"],
    "properties": {
        "from": {"type": "string", "title": "From", "minLength": 3, "maxLength": 3},
        "cabin": {"enum": ["economy", "first"], "default": "economy"},
        "bags": {"type": "integer", "minimum": 0, "maximum": 4},
        "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "guests": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {"type": "object", "properties": {"age": {"type": ["integer", "null"]}}, "required": ["age"]},
        },
        "extra": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "any": True,
    },
}


def fits(schema: Any, text: str) -> bool:
    test = certainly_fits(schema)
    assert test is not None
    return test(parse_strict(text.encode()))


@pytest.mark.parametrize(
    "arguments",
    [
        '{"from": "SFO"}',
        '{"from": "ÄÖÜ", "cabin": "first", "bags": 4, "price": 1.50, "any": [1]}',
        '{"from": "SFO", "price": null, "guests": [{"age": 3}, {"age": null, "name": "x"}], "extra": {"pet": true}}',
    ],
)
def test_what_most_tools_declare_is_enough(arguments: str) -> None:
    assert fits(_SEARCH, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        "{}", '{"from": "SF"}', '{"from": "SFOX"}', '{"from": 1}', '{"from": "SFO", "cabin": "x"}',
        '{"from": "SFO", "cabin": []}', '{"from": "SFO", "bags": 5}', '{"from": "SFO", "bags": -1}',
        '{"from": "SFO", "bags": true}', '{"from": "SFO", "bags": 1.5}', '{"from": "SFO", "price": "1"}',
        '{"from": "SFO", "guests": []}', '{"from": "SFO", "guests": [{}]}', '{"from": "SFO", "guests": [{"age": "3"}]}',
        '{"from": "SFO", "guests": [{"age": 1}, {"age": 1}, {"age": 1}]}', '{"from": "SFO", "extra": {"pet": 1}}',
        '{"from": "SFO", "else": 1}', "[]", '"SFO"',
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_left_to_the_validator_which_says_why(arguments: str) -> None:
    assert not fits(_SEARCH, arguments)
    asked = tool("t", Server("s"), PythonEndpoint("m:f"), input_schema=json.dumps(_SEARCH))
    with pytest.raises(InvalidArgument, match=r"do not fit the schema of t|must be a JSON object"):
        asked.checked(arguments.encode())


def test_what_the_validator_takes_in_another_way_it_still_takes() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, "x"]}}}
    assert fits(schema, '{"a": "x"}') and not fits(schema, '{"a": 1}')  # not sure of it
    asked = tool("t", Server("s"), PythonEndpoint("m:f"), input_schema=json.dumps(schema))
    assert asked.checked(b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "patternProperties": {"x": False}},
        {"type": "object", "$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}},
        {"type": "object", "not": {}},
        {"$schema": "http://json-schema.org/draft-03/schema#", "type": "object"},
        {"items": {"$schema": "http://json-schema.org/draft-03/schema#"}},
        {"items": {"pattern": "x"}},
        {"anyOf": [{"pattern": "x"}]},
        False,
    ],
    ids=str,
)
def test_other_rules_are_the_validators(schema: Any) -> None:
    assert certainly_fits(schema) is None


_NAMES = st.sampled_from(["a", "b", "c"])
_SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 1.5, "", "a", "ab"])
_TYPE_NAMES = st.sampled_from(["object", "array", "string", "boolean", "null", "integer", "number"])
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=6
)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    bounds = st.integers(0, 2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": _TYPE_NAMES | st.lists(_TYPE_NAMES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(_SCALARS, min_size=1, max_size=3),
            "properties": st.dictionaries(_NAMES, inner, max_size=2),
            "required": st.lists(_NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems"], bounds),
            **dict.fromkeys(["minimum", "maximum"], bounds | st.just(1.5)),
            "pattern": st.just("a"),
            "description": st.just("x"),
        },
    )


@given(st.recursive(st.booleans(), _schemas, max_leaves=5), _VALUES)
def test_nothing_fits_that_a_validator_refuses(schema: Any, value: Any) -> None:
    text = json.dumps(schema)
    test = certainly_fits(checked_schema("t", text)) if isinstance(schema, dict) else certainly_fits(schema)
    parsed: Any = parse_strict(json.dumps(value).encode())
    if test is not None and test(parsed):
        assert not list(validator_of(json.loads(text)).iter_errors(parsed))
