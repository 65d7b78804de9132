"""References to results of earlier tasks: `$1`, `$1.path[0].name`, `${call-7["a key"]}`.

A string that is one reference and nothing else becomes the value itself, with its type. Anywhere else in a string a
reference becomes text. `$$` is one `$`; a `$` that no name and no brace follows is a `$`. Keys of objects are never
interpreted, and neither is what a task returned: references are resolved once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from forerun.core import limits
from forerun.core.canonical import JsonValue, canonical, child_path, decode_utf8, parse_strict
from forerun.core.errors import CoreError

_PATH = r'(?:\.[A-Za-z_][A-Za-z0-9_-]*|\[(?:[0-9]{1,9}|"(?:[^"\\]|\\.)*")\])*'
_DOLLAR = re.compile(
    r"\$(?:(?P<escape>\$)"
    rf"|\{{(?P<braced>[A-Za-z0-9_-]+)(?P<braced_path>{_PATH})\}}"
    rf"|(?P<bare>[A-Za-z0-9_]+)(?P<bare_path>{_PATH})"
    r"|(?P<broken>\{))"
)
REFERENCE = re.compile(rf"\$(?:\{{[A-Za-z0-9_-]+{_PATH}\}}|[A-Za-z0-9_]+{_PATH})")
"""The text of one reference."""
_STEP = re.compile(r'\.([A-Za-z_][A-Za-z0-9_-]*)|\[([0-9]+)\]|\[("(?:[^"\\]|\\.)*")\]')


class ReferenceProblem(CoreError):
    """A reference that cannot be read or resolved.

    Attributes:
        reason: `bad_reference`, `no_such_value`, `not_typed`, `too_deep` or a reason of `CanonicalError`.
        place: Where in the arguments, such as `$.query`.
    """

    def __init__(self, reason: str, message: str, *, place: str) -> None:
        super().__init__(reason, message)
        self.place = place


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference.

    Attributes:
        task: The task that it names.
        path: Keys and indexes into its result.
        place: Where in the arguments it stands.
        text: As it was written.
    """

    task: str
    path: tuple[str | int, ...]
    place: str
    text: str


@dataclass(frozen=True, slots=True)
class _Text:
    """A string with references in it."""

    parts: tuple[str | Reference, ...]
    place: str


_Node: TypeAlias = "JsonValue | Reference | _Text | list[_Node] | dict[str, _Node]"


@dataclass(frozen=True, slots=True)
class Template:
    """The arguments of one task, read once.

    Attributes:
        references: All of its references.
        known: The arguments with null for everything that depends on a reference.
        open_names: Names of the arguments that depend on one.
    """

    references: tuple[Reference, ...]
    known: dict[str, JsonValue]
    open_names: frozenset[str]
    _node: Mapping[str, _Node]

    def resolve(self, value_of: Callable[[str], JsonValue]) -> dict[str, JsonValue]:
        """The arguments with every reference resolved.

        Args:
            value_of: The value of a task's result.

        Raises:
            ReferenceProblem: `no_such_value`: a result has nothing at a path; or what `value_of` raises.
        """
        return {name: _resolved(node, value_of) for name, node in self._node.items()}


def compile_arguments(arguments: Mapping[str, JsonValue], *, literal: bool = False) -> Template:
    """Finds the references of a task's arguments.

    Args:
        arguments: As planned.
        literal: There are none; every `$` is a `$`.

    Raises:
        ReferenceProblem: `bad_reference`, with the place; `too_deep`.
    """
    if literal:
        return Template((), dict(arguments), frozenset(), dict(arguments))
    found: list[Reference] = []
    node: dict[str, _Node] = {}
    known: dict[str, JsonValue] = {}
    names: set[str] = set()
    for name, value in arguments.items():
        before = len(found)
        node[name] = _compiled(value, child_path("$", name), found, limits.JSON_DEPTH)
        known[name] = _known(node[name])
        if len(found) > before:
            names.add(name)
    return Template(tuple(found), known, frozenset(names), node)


def _compiled(value: JsonValue, place: str, found: list[Reference], levels_left: int) -> _Node:
    if isinstance(value, str):
        return _compiled_text(value, place, found) if "$" in value else value
    if not isinstance(value, (list, dict)):
        return value
    if levels_left == 0:
        message = f"nested deeper than JSON_DEPTH ({limits.JSON_DEPTH} levels)"
        raise ReferenceProblem("too_deep", message, place=place[:200])
    if isinstance(value, list):
        return [_compiled(item, child_path(place, index), found, levels_left - 1) for index, item in enumerate(value)]
    return {key: _compiled(item, child_path(place, key), found, levels_left - 1) for key, item in value.items()}


def _compiled_text(text: str, place: str, found: list[Reference]) -> _Node:
    parts: list[str | Reference] = []
    for part in _parts(text, place):
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != "":
            parts.append(part)
    references = [part for part in parts if isinstance(part, Reference)]
    if not references:
        return "".join(part for part in parts if isinstance(part, str))
    found.extend(references)
    return references[0] if len(parts) == 1 else _Text(tuple(parts), place)


def _parts(text: str, place: str) -> Iterator[str | Reference]:
    position = 0
    for match in _DOLLAR.finditer(text):
        yield text[position : match.start()]
        position = match.end()
        if match["escape"]:
            yield "$"
            continue
        if match["broken"]:
            written = text[match.start() : match.start() + 40]
            raise ReferenceProblem(
                "bad_reference",
                f"{written!r} is no reference; it has the form ${{task.path[0]}}, and $$ is a plain $",
                place=place,
            )
        task = match["braced"] or match["bare"]
        path = match["braced_path"] or match["bare_path"] or ""
        yield Reference(task, tuple(_steps(path, place)), place, match[0])
    yield text[position:]


def _steps(path: str, place: str) -> Iterator[str | int]:
    for step in _STEP.finditer(path):
        if step[1] is not None:
            yield step[1]
        elif step[2] is not None:
            yield int(step[2])
        else:
            try:
                yield str(json.loads(step[3]))
            except ValueError as error:
                raise ReferenceProblem("bad_reference", f"{step[3]} is no JSON string", place=place) from error


def _known(node: _Node) -> JsonValue:
    if isinstance(node, (Reference, _Text)):
        return None
    if isinstance(node, list):
        return [_known(item) for item in node]
    if isinstance(node, dict):
        return {key: _known(item) for key, item in node.items()}
    return node


def _resolved(node: _Node, value_of: Callable[[str], JsonValue]) -> JsonValue:
    if isinstance(node, Reference):
        return _at(value_of(node.task), node)
    if isinstance(node, _Text):
        return "".join(
            part if isinstance(part, str) else text_of(_at(value_of(part.task), part)) for part in node.parts
        )
    if isinstance(node, list):
        return [_resolved(item, value_of) for item in node]
    if isinstance(node, dict):
        return {key: _resolved(item, value_of) for key, item in node.items()}
    return node


def _at(value: JsonValue, reference: Reference) -> JsonValue:
    where = "$"
    for step in reference.path:
        if isinstance(step, int):
            inside = isinstance(value, list) and step < len(value)
        else:
            inside = isinstance(value, dict) and step in value
        if not inside:
            raise ReferenceProblem(
                "no_such_value",
                f"{reference.text}: the result of task {reference.task} is {_kind(value)} at {where}"
                f" and has no {step!r}",
                place=reference.place,
            )
        where = child_path(where, step)
        value = value[step]  # type: ignore[index]  # just checked
    return value


def text_of(value: JsonValue) -> str:
    """A value inside a text: a string as it is, anything else in its canonical JSON spelling."""
    return value if isinstance(value, str) else canonical(value).decode("utf-8")


def _kind(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else "a number"


def value_of(content: bytes, media_type: str) -> JsonValue:
    """What a result is to those who refer to it: JSON is its value, text a string.

    Raises:
        CanonicalError: JSON that is none, or text that is no UTF-8.
        CoreError: `not_typed`: neither JSON nor text.
    """
    kind = media_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return parse_strict(content)
    if kind.startswith("text/") or not kind:
        return decode_utf8(content)
    raise CoreError("not_typed", f"a result of type {kind} is neither JSON nor text")
