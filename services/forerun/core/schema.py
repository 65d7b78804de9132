"""The little of JSON Schema that decides which arguments are the same.

Only what a schema says for certain is used: which values are numbers, which properties have a declared default and
which are required. Alternatives (`anyOf`, `oneOf`, `if`) say nothing for certain and add nothing. Whether arguments
are valid is judged elsewhere, with a complete validator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

from forerun.core import limits
from forerun.core.canonical import JsonValue, canonical, parse_strict
from forerun.core.errors import CoreError

_NO_NODES: Mapping[str, JsonValue] = MappingProxyType({})


class SchemaError(CoreError):
    """A tool's schema is no schema. `reason`: `not_a_schema` or `unresolvable_reference`."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """The input schema of one tool, parsed once and shared by all of its calls.

    Attributes:
        root: The parsed document. It is never changed.
    """

    root: Mapping[str, JsonValue]

    @property
    def required(self) -> tuple[str, ...]:
        """Names that arguments must have, in the schema's order."""
        names = self.resolved(self.root).get("required")
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments, in the schema's order: what a value by position means."""
        names = self.resolved(self.root).get("properties")
        return tuple(names) if isinstance(names, dict) else ()

    def missing(self, arguments: JsonValue) -> tuple[str, ...]:
        """Required names that the arguments lack."""
        given = arguments if isinstance(arguments, dict) else {}
        return tuple(name for name in self.required if name not in given)

    def normalised(self, value: JsonValue) -> JsonValue:
        """A copy for comparison: declared defaults filled in, one spelling for what the schema calls a `number`.

        Never executed: what runs are the bytes that were sent.
        """
        return self._normalise(value, self.root)

    def declares(self, path: tuple[str, ...]) -> bool:
        """Whether the schema names every key on this path of object keys; lists on the way do not count as a step."""
        return self._at(path) is not None

    def fixed_values(self, path: tuple[str, ...]) -> tuple[JsonValue, ...]:
        """The values of `enum` or `const` that the schema declares at a path of object keys."""
        node = self._at(path)
        if node is None:
            return ()
        node = self._through_lists(node)
        if "const" in node:
            return (node["const"],)
        values = node.get("enum")
        return tuple(values) if isinstance(values, list) else ()

    def _at(self, path: tuple[str, ...]) -> Mapping[str, JsonValue] | None:
        node = self.resolved(self.root)
        for key in path:
            properties = self._through_lists(node).get("properties")
            below = properties.get(key, False) if isinstance(properties, dict) else False
            if below is True:
                below = {}
            if not isinstance(below, dict):
                return None
            node = self.resolved(below)
        return node

    def _through_lists(self, node: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        for _ in range(limits.JSON_DEPTH):
            items = node.get("items")
            if not isinstance(items, dict):
                return node
            node = self.resolved(items)
        return node

    def _normalise(self, value: JsonValue, schema: JsonValue | Mapping[str, JsonValue]) -> JsonValue:
        if not isinstance(schema, Mapping):
            return value
        node = self.resolved(schema)
        if isinstance(value, dict):
            return self._normalise_object(value, node)
        if isinstance(value, list):
            first = node.get("prefixItems")
            leading = first if isinstance(first, list) else []
            rest = node.get("items")
            return [
                self._normalise(item, leading[index] if index < len(leading) else rest)
                for index, item in enumerate(value)
            ]
        if type(value) is int and _says_number(node):
            return Decimal(value)
        return value

    def _normalise_object(self, value: dict[str, JsonValue], node: Mapping[str, JsonValue]) -> JsonValue:
        declared = node.get("properties")
        properties = declared if isinstance(declared, dict) else {}
        others = node.get("additionalProperties")
        result: dict[str, JsonValue] = {
            key: self._normalise(item, properties.get(key, others)) for key, item in value.items()
        }
        for key, below in properties.items():
            if key not in value and isinstance(below, dict):
                found = self.resolved(below)
                if "default" in found:
                    result[key] = self._normalise(found["default"], found)
        return result

    def resolved(self, node: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """Follows `$ref` inside this document. Keywords beside the reference win over the ones it points to."""
        for _ in range(limits.SCHEMA_REFERENCES):
            reference = node.get("$ref")
            if not isinstance(reference, str):
                return node
            target = self._target(reference)
            if target is None:
                return _NO_NODES
            node = {**target, **{key: item for key, item in node.items() if key != "$ref"}}
        return _NO_NODES  # a cycle of references says nothing

    def _target(self, reference: str) -> Mapping[str, JsonValue] | None:
        if not reference.startswith("#"):
            return None
        found: JsonValue | Mapping[str, JsonValue] = self.root
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found if isinstance(found, Mapping) else None


def _says_number(node: Mapping[str, JsonValue]) -> bool:
    kind = node.get("type")
    return kind == "number" or (isinstance(kind, list) and "number" in kind)


def parse_schema(data: bytes) -> ToolSchema:
    """Parses the input schema of a tool.

    Raises:
        CanonicalError: It is no strict JSON, or too large.
        SchemaError: It is no object.
    """
    root = parse_strict(data, max_bytes=limits.SCHEMA_BYTES)
    if root is True:  # "anything goes" in JSON Schema
        return ToolSchema(_NO_NODES)
    if not isinstance(root, dict):
        raise SchemaError("not_a_schema", "a tool's input schema must be a JSON object")
    return ToolSchema(root)


def digest_of(schema: bytes, endpoint_version: str) -> str:
    """The version of a tool: digest of its schema (whatever its spelling) and the version of its endpoint.

    Raises:
        CanonicalError: The schema is no strict JSON.
    """
    return _digest((canonical(parse_strict(schema, max_bytes=limits.SCHEMA_BYTES)), endpoint_version.encode("utf-8")))


def _digest(parts: tuple[bytes, ...]) -> str:
    state = hashlib.sha256()
    for part in _framed(parts):
        state.update(part)
    return f"sha256:{state.hexdigest()}"


def _framed(parts: tuple[bytes, ...]) -> Iterator[bytes]:
    """Lengths go in front, so that no two lists of parts look the same."""
    for part in parts:
        yield len(part).to_bytes(8, "big")
        yield part
