"""Laws of strict parsing, canonical spelling and intake."""

from __future__ import annotations

import json
import math
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.canonical import CanonicalError, JsonValue, canonical, parse_strict
from forerun.core.identity import canonical_arguments
from forerun.core.intake import sanitise, split_arguments
from forerun.core.schema import parse_schema

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = (
    st.integers()
    | st.integers(min_value=-(10**700), max_value=10**700)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.sampled_from([Decimal("-0"), Decimal("-0.0"), Decimal("1.0"), Decimal("1e-7"), Decimal("123e19")])
)
values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=4)
fast = settings(max_examples=100, deadline=None)


@fast
@given(values)
def test_parsing_the_canonical_text_gives_the_value_back(value: JsonValue) -> None:
    text = canonical(value)
    again = parse_strict(text)
    assert again == value
    assert canonical(again) == text


@fast
@given(values, values)
def test_different_values_have_different_texts(one: JsonValue, other: JsonValue) -> None:
    if one != other:
        assert canonical(one) != canonical(other)


@fast
@given(st.data(), objects)
def test_key_order_never_matters(data: st.DataObject, value: dict[str, JsonValue]) -> None:
    shuffled = {key: value[key] for key in data.draw(st.permutations(list(value)))}
    assert canonical(shuffled) == canonical(value)


@fast
@given(st.binary(max_size=40) | texts.map(str.encode))
def test_whatever_is_accepted_is_json_for_everybody_else(data: bytes) -> None:
    try:
        value = parse_strict(data)
    except CanonicalError:
        return
    json.loads(data)  # raises when it is none
    assert parse_strict(canonical(value)) == value


@fast
@given(objects)
def test_a_schema_without_statements_changes_nothing(value: dict[str, JsonValue]) -> None:
    schema = parse_schema(b'{"anyOf":[{"properties":{"a":{"default":1}}}]}')
    assert canonical_arguments(value, schema=schema) == canonical(value)


@fast
@given(objects)
def test_filling_in_is_idempotent(value: dict[str, JsonValue]) -> None:
    schema = parse_schema(
        b'{"additionalProperties":{"type":"number"},"properties":{"d":{"default":{"x":1},"type":"object"}}}'
    )
    once = schema.normalised(value)
    assert canonical(schema.normalised(once)) == canonical(once)


@fast
@given(st.lists(objects, min_size=1, max_size=5), st.sampled_from(["", " ", "\n", "\t "]))
def test_glued_objects_are_neither_lost_nor_changed(pieces: list[dict[str, JsonValue]], between: str) -> None:
    text = between.join(canonical(piece).decode() for piece in pieces)
    placeholder = len(pieces) == 2 and not pieces[0] and pieces[1]
    assert split_arguments(text, None) == (pieces[1:] if placeholder else pieces)


@fast
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=12,
    )
)
def test_every_python_result_ends_as_strict_json(value: object) -> None:
    result = sanitise(value)
    assert json.loads(canonical(result.value)) is not None or result.value is None
    assert len(result.replaced) == not_json(value)
    assert len(set(result.replaced)) == len(result.replaced)


def not_json(value: object) -> int:
    """Counts the numbers that JSON does not have."""
    if isinstance(value, float):
        return int(not math.isfinite(value))
    if isinstance(value, dict):
        return sum(not_json(item) for item in value.values())
    return sum(not_json(item) for item in value) if isinstance(value, list) else 0
