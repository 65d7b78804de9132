"""JSON Schemas as automata: every text of the automaton is valid, though not every valid text is in it.

One spacing, properties in the schema's order, no property that is not declared, strings and lists up to a bound.
Where a schema demands what an automaton of this kind cannot keep (a pattern, `not`, a recursion), an optional part is
left out, and a part that is required makes the whole unsupported: nothing that may be invalid is ever written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, canonical
from forerun.core.errors import CoreError
from forerun.core.grammar import scalars
from forerun.core.grammar.automaton import Builder, Part
from forerun.core.schema import ToolSchema

_REFUSED: Final = frozenset(
    """not if then else patternProperties propertyNames dependentRequired dependentSchemas dependencies
    unevaluatedProperties unevaluatedItems contains minContains maxContains prefixItems additionalItems pattern
    multipleOf maxProperties $dynamicRef $recursiveRef""".split()
)
_ASSERTIONS: Final = frozenset(
    """type enum const properties required items minItems maxItems uniqueItems minLength maxLength minimum maximum
    exclusiveMinimum exclusiveMaximum minProperties anyOf oneOf allOf""".split()
)
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")

Node = Mapping[str, JsonValue]


class Unsupported(CoreError):
    """No automaton keeps what the schema demands. The message says where and what."""


class SchemaGrammar:
    """Writes the values of one schema.

    Args:
        to: Where to.
        schema: The document.
    """

    def __init__(self, to: Builder, schema: ToolSchema) -> None:
        self._to = to
        self._schema = schema
        self._inside: list[str] = []

    def arguments(self, start: int) -> int:
        """The arguments of a call: an object in any case.

        Raises:
            Unsupported: See there.
            GrammarTooLarge: It would have too many states.
        """
        node = self._schema.resolved(self._schema.root)
        if node.get("type", "object") != "object":
            raise Unsupported("unsupported", "arguments that are no object")
        return self._value(start, {**node, "type": "object"}, "$")

    def _value(self, start: int, given: JsonValue | Node, path: str) -> int:
        node, entered = self._entered(given, path)
        try:
            return self._of_node(start, node, path)
        finally:
            if entered:
                self._inside.pop()

    def _entered(self, given: JsonValue | Node, path: str) -> tuple[Node, bool]:
        if given is True:
            return {}, False
        if not isinstance(given, Mapping):
            raise Unsupported("unsupported", f"{path}: nothing is valid")
        reference = given.get("$ref")
        if not isinstance(reference, str):
            return given, False
        if reference in self._inside or not (node := self._schema.resolved(given)):
            raise Unsupported("unsupported", f"{path}: a reference to itself, or to nothing")
        self._inside.append(reference)
        return node, True

    def _of_node(self, start: int, node: Node, path: str) -> int:
        if refused := sorted(_REFUSED & node.keys()):
            raise Unsupported("unsupported", f"{path}: {refused[0]}")
        for name in ("anyOf", "oneOf", "allOf"):
            if name in node:
                return self._combined(start, node, name, path)
        if "const" in node or "enum" in node:
            return self._fixed(start, node, path)
        return self._any_of(start, [self._typed(one, node, path) for one in _types(node, path)], path)

    def _combined(self, start: int, node: Node, name: str, path: str) -> int:
        branches = node[name]
        if not isinstance(branches, list) or not branches or (_ASSERTIONS & node.keys()) - {name}:
            raise Unsupported("unsupported", f"{path}: {name} beside other demands")
        if name == "allOf" and len(branches) > 1:
            raise Unsupported("unsupported", f"{path}: allOf")
        if name == "oneOf" and len(branches) > 1:
            kinds = [self._kind(one, path) for one in branches]
            if len(set(kinds)) < len(kinds) or {"integer", "number"} <= set(kinds):
                raise Unsupported("unsupported", f"{path}: oneOf of the same types")
        return self._any_of(start, [self._branch(one, path) for one in branches], path)

    def _branch(self, given: JsonValue, path: str) -> Part:
        return lambda first: self._value(first, given, path)

    def _literal(self, text: bytes) -> Part:
        return lambda first: self._to.literal(first, text)

    def _kind(self, branch: JsonValue, path: str) -> str:
        kind = self._schema.resolved(branch).get("type") if isinstance(branch, dict) else None
        if not isinstance(kind, str):
            raise Unsupported("unsupported", f"{path}: oneOf without types")
        return kind

    def _any_of(self, start: int, parts: Sequence[Part], path: str) -> int:
        """Those of several parts that can be kept; at least one has to be."""
        if len(parts) == 1:
            return parts[0](start)
        why: list[Unsupported] = []
        end = self._to.state()
        for part in parts:
            first = self._to.state()
            try:
                self._to.skip(part(first), end)
            except Unsupported as error:
                why.append(error)  # a part that was begun has no way to its end, and none to it
            else:
                self._to.skip(start, first)
        if len(why) == len(parts):
            raise why[0] if why else Unsupported("unsupported", f"{path}: nothing is valid")
        return end

    def _fixed(self, start: int, node: Node, path: str) -> int:
        values = [node["const"]] if "const" in node else node["enum"]
        if not isinstance(values, list) or (_ASSERTIONS & node.keys()) - {"type", "enum", "const"}:
            raise Unsupported("unsupported", f"{path}: fixed values beside other demands")
        if "const" in node and "enum" in node:
            raise Unsupported("unsupported", f"{path}: const beside enum")
        kinds = _types(node, path) if "type" in node else _TYPES
        texts = [_text(one, path) for one in values if any(_is(one, kind) for kind in kinds)]
        if not texts:
            raise Unsupported("unsupported", f"{path}: nothing is valid")
        return self._to.either(start, [self._literal(text) for text in texts])

    def _typed(self, kind: str, node: Node, path: str) -> Part:
        def part(start: int) -> int:
            match kind:
                case "object":
                    return self._object(start, node, path)
                case "array":
                    return self._array(start, node, path)
                case "string":
                    return self._string(start, node, path)
                case "boolean":
                    return self._to.either(start, [self._literal(b"true"), self._literal(b"false")])
                case "null":
                    return self._to.literal(start, b"null")
            return self._number(start, kind, node, path)

        return part

    def _string(self, start: int, node: Node, path: str) -> int:
        least, most = _count(node, "minLength") or 0, _count(node, "maxLength")
        if least > limits.GRAMMAR_STRING_CHARS or (most is not None and most < least):
            raise Unsupported("unsupported", f"{path}: minLength {least}")
        return scalars.string(self._to, start, least, None if most is None else min(most, limits.GRAMMAR_STRING_CHARS))

    def _number(self, start: int, kind: str, node: Node, path: str) -> int:
        least, most = _bounds(node)
        if least is not None and most is not None and least > most:
            raise Unsupported("unsupported", f"{path}: no whole number between its bounds")
        write = scalars.integer if kind == "integer" else scalars.number
        return write(self._to, start, least, most)

    def _object(self, start: int, node: Node, path: str) -> int:
        declared = node.get("properties", {})
        names = node.get("required", [])
        if not isinstance(declared, dict) or not isinstance(names, list):
            raise Unsupported("unsupported", f"{path}: properties that are none")
        required = {one for one in names if isinstance(one, str)}
        if missing := sorted(required - declared.keys()):
            raise Unsupported("unsupported", f"{path}: the required {missing[0]} is not described")
        if (_count(node, "minProperties") or 0) > len(required):
            raise Unsupported("unsupported", f"{path}: minProperties")
        # Two rows of states: nothing was written yet, or something was.
        bare: int | None = self._to.literal(start, b"{")
        after: int | None = None
        for name, below in declared.items():
            bare, after = self._property(name, below, name in required, bare, after, path)
        end = self._to.state()
        for one in (bare, after):
            if one is not None:
                self._to.skip(one, end)
        return self._to.literal(end, b"}")

    def _property(
        self, name: str, below: JsonValue, required: bool, bare: int | None, after: int | None, path: str
    ) -> tuple[int | None, int | None]:
        first = self._to.state()
        try:
            key = self._to.literal(first, json.dumps(name, ensure_ascii=False).encode() + b": ")
            written = self._value(key, below, f"{path}.{name}")
        except Unsupported:
            if required:
                raise
            return bare, after
        if bare is not None:
            self._to.skip(bare, first)
        if after is not None:
            self._to.skip(self._to.literal(after, b", "), first)
        if required:
            return None, written
        if after is not None:
            join = self._to.state()
            self._to.skip(after, join)
            self._to.skip(written, join)
            written = join
        return bare, written

    def _array(self, start: int, node: Node, path: str) -> int:
        least, most = _count(node, "minItems") or 0, _count(node, "maxItems")
        bound = None if most is None else min(most, limits.GRAMMAR_LIST_ITEMS)
        if node.get("uniqueItems") is True:
            bound = 1 if bound is None else min(bound, 1)
        if least > limits.GRAMMAR_LIST_ITEMS or (bound is not None and least > bound):
            raise Unsupported("unsupported", f"{path}: {least} items")
        at, end = self._to.literal(start, b"["), self._to.state()
        # Without a bound the last of the items that are written out comes again and again.
        for number in range(max(least, 1) + 1 if bound is None else bound):
            if number >= least:
                self._to.skip(at, end)
            begin = self._to.literal(at, b", ") if number else at
            try:
                behind = self._value(begin, node.get("items", True), f"{path}[]")
            except Unsupported:
                if number < least:
                    raise
                return self._to.literal(end, b"]")
            if bound is None and number == max(least, 1):
                self._to.skip(behind, at)
            else:
                at = behind
        self._to.skip(at, end)
        return self._to.literal(end, b"]")


def _types(node: Node, path: str) -> Sequence[str]:
    kind = node.get("type")
    if kind is None:
        implied = "object" if "properties" in node else "array" if "items" in node else None
        # Without a type anything goes; plain values are enough of it.
        return [implied] if implied else ["string", "number", "boolean", "null"]
    kinds = kind if isinstance(kind, list) else [kind]
    if not kinds or any(one not in _TYPES for one in kinds):
        raise Unsupported("unsupported", f"{path}: a type that JSON does not have")
    return [one for one in kinds if isinstance(one, str)]


def _is(value: JsonValue, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | Decimal):
        return kind == "number" or (kind == "integer" and value == int(value))
    return kind == {dict: "object", list: "array", str: "string", type(None): "null"}[type(value)]


def _text(value: JsonValue, path: str) -> bytes:
    try:
        return canonical(value)
    except CanonicalError as error:
        raise Unsupported("unsupported", f"{path}: {error}") from error


def _count(node: Node, name: str) -> int | None:
    value = node.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or value != int(value) or value < 0:
        raise Unsupported("unsupported", f"{name} that is no count")
    return int(value)


def _bounds(node: Node) -> tuple[int | None, int | None]:
    """The whole numbers between which a value certainly is valid."""
    least: list[int] = []
    most: list[int] = []
    for name, value in node.items():
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            continue
        floor = int(Decimal(value).to_integral_value("ROUND_FLOOR"))
        ceiling = int(Decimal(value).to_integral_value("ROUND_CEILING"))
        if name == "minimum":
            least.append(ceiling)
        elif name == "exclusiveMinimum":
            least.append(floor + 1)
        elif name == "maximum":
            most.append(floor)
        elif name == "exclusiveMaximum":
            most.append(ceiling - 1)
    return max(least, default=None), min(most, default=None)
