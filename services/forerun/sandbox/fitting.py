"""Arguments that certainly fit their tool's schema, found without judging every rule of JSON Schema.

Most calls fit, and most schemas are made of few rules. A test for those takes a tenth of the time that a validator
does. It never refuses: what it is not sure of, the validator judges, who also says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

Fits = Callable[[Any], bool]

_SAY_NOTHING: Final = frozenset({"title", "description", "default", "examples", "format", "deprecated"})
_DIALECTS: Final = (
    "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-06/schema",
)  # fmt: skip
_NUMBERS: Final = frozenset({int, Decimal})
# By exact type: a truth value is no number. What is no integer by its type may be one by its value: not sure.
_TYPES: Final[Mapping[str, frozenset[type]]] = {
    "object": frozenset({dict}), "array": frozenset({list}), "string": frozenset({str}), "boolean": frozenset({bool}),
    "null": frozenset({type(None)}), "integer": frozenset({int}), "number": _NUMBERS,
}  # fmt: skip


def certainly_fits(schema: Any) -> Fits | None:
    """A test of whether a value of strict JSON certainly fits a schema; None where the schema has rules beyond it.

    Args:
        schema: A valid JSON Schema.
    """
    if not isinstance(schema, dict) or schema.get("$schema", _DIALECTS[0]).rstrip("#") not in _DIALECTS:
        return None
    return _of({rule: content for rule, content in schema.items() if rule != "$schema"})


def _of(schema: Any) -> Fits | None:
    if schema is True:
        return _anything
    if not isinstance(schema, dict):
        return None
    tests: list[Fits] = []
    rules = schema.keys() - _SAY_NOTHING
    if not rules.isdisjoint({"properties", "required", "additionalProperties"}):
        rules -= {"properties", "required", "additionalProperties"}
        tests.append(_object(schema))
    for rule in sorted(rules):
        make = _RULES.get(rule)
        test = make(schema[rule]) if make is not None else None
        if test is None:
            return None
        tests.append(test)
    if len(tests) == 1:
        return tests[0]
    return lambda value: all(test(value) for test in tests)


def _anything(_: Any) -> bool:
    return True


def _type(names: str | list[str]) -> Fits:
    allowed = [names] if isinstance(names, str) else names
    known: frozenset[type] = frozenset().union(*(_TYPES[name] for name in allowed))
    return lambda value: type(value) in known


def _enum(values: list[Any]) -> Fits:
    # Numbers that are equal may be written in several ways, and true equals 1 for Python: texts only.
    known = frozenset(value for value in values if isinstance(value, str))
    return lambda value: type(value) is str and value in known


def _any_of(schemas: list[Any]) -> Fits | None:
    tests = [test for schema in schemas if (test := _of(schema)) is not None]
    return (lambda value: any(test(value) for test in tests)) if tests else None


def _items(schema: Any) -> Fits | None:
    test = _of(schema)
    return None if test is None else lambda value: type(value) is not list or all(map(test, value))


def _bound(
    of: frozenset[type], measured: Callable[[Any], Any], within: Callable[[Any, Any], bool]
) -> Callable[[Any], Fits]:
    """A rule that bounds values of some types, and says nothing of others."""

    def make(bound: Any) -> Fits:
        return lambda value: type(value) not in of or within(measured(value), bound)

    return make


def _itself(value: Any) -> Any:
    return value


def _at_least(value: Any, bound: Any) -> bool:
    return not value < bound


def _at_most(value: Any, bound: Any) -> bool:
    return not value > bound


def _object(schema: Mapping[str, Any]) -> Fits:
    properties = {name: _of(rule) for name, rule in schema.get("properties", {}).items()}
    more = _of(schema.get("additionalProperties", True))
    required = tuple(schema.get("required", ()))

    def test(value: Any) -> bool:
        if type(value) is not dict:
            return True
        for name in required:
            if name not in value:
                return False
        for name, content in value.items():
            fits = properties.get(name, more)
            if fits is None or not fits(content):
                return False
        return True

    return test


_RULES: Final[Mapping[str, Callable[[Any], Fits | None]]] = {
    "type": _type,
    "enum": _enum,
    "anyOf": _any_of,
    "items": _items,
    "minimum": _bound(_NUMBERS, _itself, _at_least),
    "maximum": _bound(_NUMBERS, _itself, _at_most),
    "minLength": _bound(_TYPES["string"], len, _at_least),
    "maxLength": _bound(_TYPES["string"], len, _at_most),
    "minItems": _bound(_TYPES["array"], len, _at_least),
    "maxItems": _bound(_TYPES["array"], len, _at_most),
}
