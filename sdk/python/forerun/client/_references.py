"""References of a plan's arguments to results of earlier tasks: `$1`, `$1.path[0].name`, `${call-7["a key"]}`.

What the platform does (forerun.core.plan.references), for plans that run around it; a contract test compares the two. A
string that is one reference and nothing else becomes the value with its type; inside a longer string it becomes text.
`$$` is one `$`. Keys of objects and results are never interpreted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.client._exact import JsonValue, NotExact, parse_exact, spelled

_PATH: Final = r'(?:\.[A-Za-z_][A-Za-z0-9_-]*|\[(?:[0-9]{1,9}|"(?:[^"\\]|\\.)*")\])*'
_DOLLAR: Final = re.compile(
    r"\$(?:(?P<escape>\$)"
    rf"|\{{(?P<braced>[A-Za-z0-9_-]+)(?P<braced_path>{_PATH})\}}"
    rf"|(?P<bare>[A-Za-z0-9_]+)(?P<bare_path>{_PATH})"
    r"|(?P<broken>\{))"
)
REFERENCE: Final = re.compile(rf"\$(?:\{{[A-Za-z0-9_-]+{_PATH}\}}|[A-Za-z0-9_]+{_PATH})")
"""The text of one reference."""
_STEP: Final = re.compile(r'\.([A-Za-z_][A-Za-z0-9_-]*)|\[([0-9]+)\]|\[("(?:[^"\\]|\\.)*")\]')


class ReferenceProblem(Exception):
    """A reference that cannot be read or resolved.

    Attributes:
        reason: `bad_reference`, `no_such_value` or `not_typed`.
        message: What is wrong.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class _Reference:
    task: str
    path: tuple[str | int, ...]
    text: str


def targets(arguments: JsonValue) -> tuple[str, ...]:
    """The tasks that arguments refer to, each once, in order.

    Raises:
        ReferenceProblem: `bad_reference`.
    """
    found = (part.task for text in _texts(arguments) for part in _parts(text) if isinstance(part, _Reference))
    return tuple(dict.fromkeys(found))


def resolve(arguments: JsonValue, value_of: Callable[[str], JsonValue]) -> JsonValue:
    """The arguments with every reference resolved, once.

    Args:
        arguments: As planned.
        value_of: The value of a task's result; what it raises is passed on.

    Raises:
        ReferenceProblem: a result has nothing at a path, or a reference cannot be read.
    """
    if isinstance(arguments, str):
        return _resolved_text(arguments, value_of) if "$" in arguments else arguments
    if isinstance(arguments, list):
        return [resolve(item, value_of) for item in arguments]
    if isinstance(arguments, dict):
        return {key: resolve(item, value_of) for key, item in arguments.items()}
    return arguments


def renamed(arguments: JsonValue, names: Mapping[str, str]) -> JsonValue:
    """The arguments with references to some tasks turned into references to others."""
    if isinstance(arguments, str):
        return _DOLLAR.sub(lambda found: _renamed(found, names), arguments)
    if isinstance(arguments, list):
        return [renamed(item, names) for item in arguments]
    if isinstance(arguments, dict):
        return {key: renamed(item, names) for key, item in arguments.items()}
    return arguments


def value_of(content: bytes, media_type: str) -> JsonValue:
    """What a result is to those who refer to it: JSON is its value, text a string.

    Raises:
        ReferenceProblem: `not_typed`: it is neither.
    """
    kind = media_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json" or kind.endswith("+json"):
            return parse_exact(content)
        if kind.startswith("text/") or not kind:
            return content.decode("utf-8")
    except (NotExact, UnicodeDecodeError) as error:
        raise ReferenceProblem("not_typed", f"a result of type {kind or 'text'} cannot be read: {error}") from error
    raise ReferenceProblem("not_typed", f"a result of type {kind} is neither JSON nor text")


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else value.values():
            yield from _texts(item)


def _parts(text: str) -> Iterator[str | _Reference]:
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
            )
        path = match["braced_path"] or match["bare_path"] or ""
        yield _Reference(match["braced"] or match["bare"], tuple(_steps(path)), match[0])
    yield text[position:]


def _steps(path: str) -> Iterator[str | int]:
    for step in _STEP.finditer(path):
        if step[1] is not None:
            yield step[1]
        elif step[2] is not None:
            yield int(step[2])
        else:
            try:
                yield str(json.loads(step[3]))
            except ValueError as error:
                raise ReferenceProblem("bad_reference", f"{step[3]} is no JSON string") from error


def _resolved_text(text: str, value_of: Callable[[str], JsonValue]) -> JsonValue:
    parts = [part for part in _parts(text) if part != ""]
    if len(parts) == 1 and isinstance(parts[0], _Reference):
        return _at(value_of(parts[0].task), parts[0])
    return "".join(part if isinstance(part, str) else _text_of(_at(value_of(part.task), part)) for part in parts)


def _text_of(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    try:
        return spelled(value).decode("utf-8")
    except NotExact as error:
        raise ReferenceProblem("not_typed", str(error)) from error


def _at(value: JsonValue, reference: _Reference) -> JsonValue:
    for step in reference.path:
        inside = value
        if isinstance(step, int) and isinstance(inside, list) and step < len(inside):
            value = inside[step]
            continue
        if isinstance(step, str) and isinstance(inside, dict) and step in inside:
            value = inside[step]
            continue
        raise ReferenceProblem(
            "no_such_value", f"{reference.text}: the result of task {reference.task} has no {step!r} there"
        )
    return value


def _renamed(found: re.Match[str], names: Mapping[str, str]) -> str:
    task = found["braced"] or found["bare"]
    if task is None or task not in names:
        return found[0]
    return f"${{{names[task]}{found['braced_path'] or found['bare_path'] or ''}}}"
