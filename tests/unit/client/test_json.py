"""Exact JSON at the client's border."""

from __future__ import annotations

from collections import OrderedDict
from decimal import Decimal
from typing import Any

import pytest

from forerun.client import Call, InvalidRequest, Result, ResultNotJson, Status
from forerun.client._json import JSON_DEPTH, decode, encode_arguments


def result(content: bytes) -> Result:
    return Result(call=Call("t"), turn=1, index=0, status=Status.OK, content=content)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, b"{}"),
        ({"b": 1, "a": [True, None, 1.5, "ü"]}, '{"b":1,"a":[true,null,1.5,"ü"]}'.encode()),
        ({"n": 2**200}, b'{"n":' + str(2**200).encode() + b"}"),
        ({"x": 1e22, "y": 0.1, "z": -0.0}, b'{"x":1e+22,"y":0.1,"z":-0.0}'),
        (OrderedDict(a=(1, 2)), b'{"a":[1,2]}'),
        (b'{"a" : 1}', b'{"a" : 1}'),
        ('{"a": "ü"}', '{"a": "ü"}'.encode()),
    ],
)
def test_what_is_sent(value: Any, text: bytes) -> None:
    assert encode_arguments(value) == text


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return {"a": value}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [1, float("inf")]}}, "$.a.b[1]"),
        ({"a": float("nan")}, "$.a"),
        ({"a": {1: 2}}, "$.a"),
        ({"a": "\ud800"}, "$.a"),
        ({"\ud800": 1}, "$"),
        ({"a": {1, 2}}, "$.a"),
        ({"a": Decimal("1.5")}, "$.a"),
        ({"a": 10**5_000}, "$.a"),
        ("\ud800", "$"),
        ([1], "$"),
        (nested(JSON_DEPTH), "$.a" + "[0]" * (JSON_DEPTH - 1)),
    ],
)
def test_what_has_no_exact_form_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_arguments(value)
    assert (caught.value.reason, caught.value.metadata["path"]) == ("ARGUMENTS_NOT_JSON", path)


def test_the_deepest_value_that_is_allowed() -> None:
    encode_arguments(nested(JSON_DEPTH - 2))


def test_integers_of_a_result_are_exact() -> None:
    digits = "9" * 10_000
    assert decode(digits.encode()) == 10**10_000 - 1
    assert result(b'{"id": 12345678901234567890}').json() == {"id": 12345678901234567890}


@pytest.mark.parametrize("content", [b"", b"NaN", b"[Infinity]", b"{", b"\xff", b"1" * 20_001, b"[" * 100_000])
def test_what_is_no_json_is_a_typed_error(content: bytes) -> None:
    with pytest.raises(ResultNotJson, match="RESULT_NOT_JSON"):
        result(content).json()
    assert result(content).content == content


def test_two_calls_with_the_same_content_are_two_calls() -> None:
    assert Call("t", {"a": 1}) != Call("t", {"a": 1})
