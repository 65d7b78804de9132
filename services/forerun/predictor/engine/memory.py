"""What one session has shown so far: every value that could become an argument, and the places it was seen at.

A *place* names where a value stood without its content: `o:TOOL:/orders/[]` (a value in an observation),
`k:TOOL:/payment_methods` (a key of a map), `l:TOOL:/items/[]/id` (all values there, as one list),
`x:TOOL:SHAPE` (a token of a plain-text observation), `u:SHAPE` and `a:SHAPE` (a token of the user's or the model's
words), `r:TOOL:/path` (an earlier argument). Derivations of arguments are statements about places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from forerun.core.canonical import CanonicalError, JsonValue
from forerun.predictor.engine.shapes import dates, tokens
from forerun.predictor.engine.tuning import (
    MAX_GROUP,
    MAX_GROUPS,
    MAX_KEYS,
    MAX_LEAVES,
    MAX_OBSERVATION_BYTES,
    MAX_PLACES,
    MAX_SOURCES,
    MAX_TEXT_TOKENS,
    MAX_VALUE_CHARS,
)
from forerun.predictor.engine.values import key_of

_FIELD = re.compile(r"[A-Za-z_][A-Za-z_ -]{0,39}$")
_YEAR = re.compile(r"(\d{4})-\d\d-\d\d$")
_DATE_CHARS = (10, 11)  # a line's end may follow
_MAX_LIST_FOR_COPY = 24
_MAX_DEPTH = 12


@dataclass(slots=True)
class Group:
    """The values that one event showed at one place, in their order."""

    ordinal: int
    keys: dict[str, None]


@dataclass(frozen=True, slots=True)
class Assumption:
    """What has to be put back when an assumed call is withdrawn: argument, value, event of its last use."""

    before: tuple[tuple[str, str, int | None], ...]


@dataclass(slots=True)
class Memory:
    """Values of one session by place, and places by value. Every table is bounded, the oldest entries go first."""

    places: dict[str, list[Group]] = field(default_factory=dict)
    where: dict[str, dict[str, None]] = field(default_factory=dict)
    used: dict[str, dict[str, int]] = field(default_factory=dict)
    said: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()
    last_flags: tuple[str, ...] = ()
    year: str | None = None
    ordinal: int = 0

    def _add(self, place: str, keys: Iterable[str]) -> None:
        groups = self.places.get(place)
        if groups is None:
            if len(self.places) >= MAX_SOURCES:
                del self.places[next(iter(self.places))]
            groups = self.places[place] = []
        if not groups or groups[-1].ordinal != self.ordinal:
            groups.append(Group(self.ordinal, {}))
            if len(groups) > MAX_GROUPS:
                del groups[0]
        kept = groups[-1].keys
        for key in keys:
            if len(kept) >= MAX_GROUP or len(key) > MAX_VALUE_CHARS or not key:
                continue
            kept[key] = None
            self._index(key, place)

    def _index(self, key: str, place: str) -> None:
        seen = self.where.get(key)
        if seen is None:
            if len(self.where) >= MAX_KEYS:
                del self.where[next(iter(self.where))]
            seen = self.where[key] = {}
        if len(seen) < MAX_PLACES or place in seen:
            seen[place] = None
        if len(key) in _DATE_CHARS and (match := _YEAR.match(key)):
            self.year = match.group(1)

    def add_user(self, text: str) -> None:
        """Remembers the tokens of the user's words."""
        self.ordinal += 1
        self.said = frozenset(self._add_text("u", text))

    def add_assistant(self, text: str) -> None:
        """Remembers the tokens of the model's words."""
        self.ordinal += 1
        self.answered = frozenset(self._add_text("a", text))

    def _add_text(self, place: str, text: str) -> list[str]:
        by_shape: dict[str, list[str]] = {}
        found = tokens(text, MAX_TEXT_TOKENS)
        for shape, token in found:
            by_shape.setdefault(shape, []).append(token)
        for shape, keys in by_shape.items():
            self._add(f"{place}:{shape}", keys)
        written = dates(text, self.year)
        if written:
            self._add(f"{place}:date", written)
        return [token for _, token in found] + written

    def add_arguments(self, tool: str, flat: Mapping[str, str]) -> None:
        """Remembers the arguments of a call; all of one call share an event."""
        self.ordinal += 1
        for path, key in flat.items():
            argument = f"{tool}:{path}"
            self._add(f"r:{argument}", (key,))
            uses = self.used.setdefault(argument, {})
            if len(uses) < MAX_KEYS // 10 or key in uses:
                uses[key] = self.ordinal

    def assume(self, tool: str, flat: Mapping[str, str]) -> Assumption:
        """Pretends that a call was asked for, until `withdraw` is called with what this returns."""
        before: list[tuple[str, str, int | None]] = []
        self.ordinal += 1
        for path, key in flat.items():
            argument = f"{tool}:{path}"
            uses = self.used.setdefault(argument, {})
            before.append((argument, key, uses.get(key)))
            uses[key] = self.ordinal
            self.places.setdefault(f"r:{argument}", []).append(Group(self.ordinal, {key: None}))
        return Assumption(tuple(before))

    def withdraw(self, assumption: Assumption) -> None:
        """Takes back the latest assumption."""
        for argument, key, ordinal in reversed(assumption.before):
            if ordinal is None:
                del self.used[argument][key]
            else:
                self.used[argument][key] = ordinal
            groups = self.places[f"r:{argument}"]
            groups.pop()
            if not groups:
                del self.places[f"r:{argument}"]
        self.ordinal -= 1

    def add_observation(self, tool: str, data: bytes, *, ok: bool) -> None:
        """Remembers the values of an observation: by path where it is JSON, by shape where it is text."""
        self.ordinal += 1
        text = data[:MAX_OBSERVATION_BYTES].decode("utf-8", errors="replace")
        value = _parse(text) if len(data) <= MAX_OBSERVATION_BYTES else None
        if isinstance(value, (dict, list)):
            leaves = _Leaves()
            leaves.walk(value)
            for path, keys in leaves.values.items():
                self._add(f"o:{tool}:{path}", keys)
            for path, keys in leaves.names.items():
                self._add(f"k:{tool}:{path}", keys)
            for path, keys in leaves.lists.items():
                self._add(f"l:{tool}:{path}", keys)
            self.last_flags = tuple(leaves.flags)
            for long_text in leaves.texts:
                self._add_text(f"x:{tool}", long_text)
            if not value:
                self.last_flags = ("empty",)
        else:
            stripped = text.strip()
            if len(stripped) <= 120:
                self._add(f"o:{tool}:", (stripped,))
            self._add_text(f"x:{tool}", text)
            self.last_flags = ("short",) if len(stripped) <= 40 else ()
        if not ok:
            self.last_flags = (*self.last_flags, "failed")

    def unused(self, place: str, argument: str) -> int:
        """How many values of the newest event at that place were not yet used for that argument."""
        groups = self.places.get(place)
        if not groups:
            return 0
        uses = self.used.get(argument, {})
        return sum(1 for key in groups[-1].keys if key not in uses)


def _parse(text: str) -> JsonValue:
    if not text or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        parsed: JsonValue = json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError, ArithmeticError):
        return None
    return parsed


def _refuse(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


class _Leaves:
    """Walks a JSON value once, within MAX_LEAVES values."""

    __slots__ = ("count", "flags", "lists", "names", "texts", "values")

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self.names: dict[str, list[str]] = {}
        self.lists: dict[str, list[str]] = {}
        self.flags: list[str] = []
        self.texts: list[str] = []
        self.count = 0

    def walk(self, node: JsonValue, path: str = "", depth: int = 0) -> None:
        if self.count >= MAX_LEAVES or depth > _MAX_DEPTH:
            return
        if isinstance(node, dict):
            self._object(node, path, depth)
        elif isinstance(node, list):
            self._list(node, path, depth)
        else:
            self._leaf(node, path)

    def _leaf(self, node: JsonValue, path: str) -> None:
        self.count += 1
        key = key_of(node)
        if isinstance(node, str) and len(node) > 120:
            if len(self.texts) < 4:
                self.texts.append(node)
            return
        self.values.setdefault(path, []).append(key)
        if len(self.flags) < 24 and "[" not in path and len(key) <= 24 and not any(c.isdigit() for c in key):
            self.flags.append(f"{path}={key}")

    def _object(self, node: dict[str, JsonValue], path: str, depth: int) -> None:
        variable = [name for name in node if not _FIELD.match(name)]
        if variable or len(node) > 20:
            self.names.setdefault(path, []).extend(node if len(node) > 20 else variable)
        if depth:
            self._container(node, path)
        for name, child in node.items():
            known = len(node) <= 20 and _FIELD.match(name)
            self.walk(child, f"{path}/{name if known else '*'}", depth + 1)

    def _list(self, node: list[JsonValue], path: str, depth: int) -> None:
        if len(self.flags) < 24:
            self.flags.append(f"{path}#{min(len(node), 3)}")
        if 0 < len(node) <= _MAX_LIST_FOR_COPY:
            self._container(node, path)
            columns: dict[str, list[JsonValue]] = {}
            for item in node:
                if isinstance(item, dict):
                    for name, child in item.items():
                        if not isinstance(child, (dict, list)) and _FIELD.match(name):
                            columns.setdefault(name, []).append(child)
            for name, column in columns.items():
                if len(column) == len(node):
                    self._container(column, f"{path}/[]/{name}")
        for item in node:
            self.walk(item, f"{path}/[]", depth + 1)

    def _container(self, node: JsonValue, path: str) -> None:
        if self.count < MAX_LEAVES:
            try:
                key = key_of(node)
            except CanonicalError:  # a lone surrogate somewhere inside: never an argument
                return
            if len(key) <= MAX_VALUE_CHARS:
                self.lists.setdefault(path, []).append(key)
