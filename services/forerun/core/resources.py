"""Which resources a call touches, as keys that can be compared.

A key is a path of segments without a leading slash: `orders/42`, `files/src/a.py`. `*` is everything. Two keys are in
conflict when they are equal or one is an ancestor of the other. Where an argument does not say which resource is
meant, the key is the prefix before it: conflicting with too much is slow, conflicting with too little is wrong.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import quote

from forerun.core import limits
from forerun.core.canonical import JsonValue
from forerun.core.contracts import Contract, ResourceTemplate, Scope, read_templates, write_templates

ROOT = "*"
"""The key of everything."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_][A-Za-z0-9_.-]*)(?::([a-z_]+))?\}")
_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]+\Z")
_PATH_KINDS = ("path", "path_ci")


@dataclass(frozen=True, slots=True)
class Footprint:
    """The resource keys that one call touches, of both scopes.

    Attributes:
        reads: What it reads.
        writes: What it writes.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def depends(self) -> tuple[str, ...]:
        """What must be unchanged for a result computed ahead to be valid; a write starts from what was there."""
        return tuple(dict.fromkeys(self.reads + self.writes))


def footprint(
    contract: Contract,
    arguments: JsonValue,
    *,
    scope: Scope | None = None,
    workspace_root: str | None = None,
    links: Mapping[str, str] | None = None,
) -> Footprint:
    """The keys that a call with these arguments touches.

    Args:
        contract: The effective contract of the call.
        arguments: Its parsed arguments.
        scope: Only resources whose generations live there; None for all.
        workspace_root: Folder from which relative paths start, so that both spellings of a path meet.
        links: Known symbolic links, normalised path -> normalised target.
    """

    def keys(templates: tuple[ResourceTemplate, ...]) -> tuple[str, ...]:
        chosen = (template for template in templates if scope is None or template.scope is scope)
        found = (resolve(template, arguments, workspace_root=workspace_root, links=links) for template in chosen)
        return tuple(dict.fromkeys(found))

    return Footprint(reads=keys(read_templates(contract)), writes=keys(write_templates(contract)))


def template_problems(template: ResourceTemplate) -> list[str]:
    """Returns what is wrong with the text of a template; empty when it can be resolved."""
    text = template.text
    if text == ROOT:
        return []
    found: list[str] = []
    if not text or text.startswith("/") or text.endswith("/") or "//" in text:
        found.append(f"resource {text!r}: must be segments with single slashes between them, or *")
    literal = _PLACEHOLDER.sub("", text)
    if "{" in literal or "}" in literal:
        found.append(f"resource {text!r}: a placeholder is {{name}} or {{name:path}}")
    if "*" in literal.removesuffix("/*"):
        found.append(f"resource {text!r}: * stands alone or as the last segment")
    for match in _PLACEHOLDER.finditer(text):
        kind = match[2]
        if kind is not None and kind not in _PATH_KINDS:
            found.append(f"resource {text!r}: unknown kind {kind!r}, known are {', '.join(_PATH_KINDS)}")
        if kind in _PATH_KINDS and (match.end() != len(text) or (match.start() and text[match.start() - 1] != "/")):
            found.append(f"resource {text!r}: a path placeholder must be the whole end of the template")
    return found


def resolve(
    template: ResourceTemplate,
    arguments: JsonValue,
    *,
    workspace_root: str | None = None,
    links: Mapping[str, str] | None = None,
) -> str:
    """Fills the placeholders of a template and returns the key.

    A value that is missing, null, empty or no scalar ends the key before its segment. Values are percent-encoded, so
    that a slash in an id makes no level of its own; only `{name:path}` (and `{name:path_ci}` for file systems that
    ignore case) brings levels, after normalisation. An absolute path needs `workspace_root` to be comparable with a
    relative one; without it the key ends before the path.
    """
    text = template.text
    if text == ROOT:
        return ROOT
    text = text.removesuffix("/*")
    parts: list[str] = []
    position = 0
    for match in _PLACEHOLDER.finditer(text):
        parts.append(text[position : match.start()])
        name, kind = match[1], match[2]
        value = _scalar_text(_lookup(arguments, name))
        filled = None
        if value is not None:
            filled = _encoded_path(value, kind, workspace_root, links) if kind in _PATH_KINDS else _encoded(value)
        if not filled:
            return _bounded("".join(parts).rpartition("/")[0])
        parts.append(filled)
        position = match.end()
    parts.append(text[position:])
    return _bounded("".join(parts))


def _lookup(arguments: JsonValue, name: str) -> JsonValue:
    """The argument of that name; a dotted name leads into objects unless it is itself an argument."""
    if isinstance(arguments, dict) and name in arguments:
        return arguments[name]
    found = arguments
    for step in name.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return found


def _scalar_text(value: JsonValue) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        # 1 and 1.0 mean the same resource. Numbers with huge exponents are not ids.
        if value == value.to_integral_value() and value.adjusted() < limits.RESOURCE_KEY_CHARS:
            return format(value.to_integral_value() or Decimal(0), "f")  # -0 is 0
        return str(value)
    if isinstance(value, int):
        return format(Decimal(value), "f")
    return None


def _encoded_path(value: str, kind: str, workspace_root: str | None, links: Mapping[str, str] | None) -> str | None:
    segments = normalised_path(value, workspace_root=workspace_root)
    if segments is None:
        return None
    if links:
        segments = _followed(segments, links)
    if kind == "path_ci":
        segments = [unicodedata.normalize("NFC", segment).casefold() for segment in segments]
    return "/".join(_encoded(segment) for segment in segments)


def _encoded(segment: str) -> str:
    if _UNRESERVED.match(segment):
        return segment  # nearly every segment, and much faster than quote()
    return quote(segment, safe="", errors="surrogatepass")


def normalised_path(value: str, *, workspace_root: str | None = None) -> list[str] | None:
    """Splits a path into its real segments: no `.`, `..`, empty ones or trailing slash.

    Paths inside `workspace_root` are relative to it; other absolute ones begin with an empty segment, which no
    relative path has. None where the path cannot be placed: it climbs out of an unknown root, begins with `~`, or is
    absolute while no root is known.
    """
    if value.startswith("~") or "\0" in value:
        return None
    root = None if workspace_root is None else _collapsed(workspace_root.split("/"))
    if not value.startswith("/"):
        climbing = _collapsed(value.split("/"))
        if not climbing or climbing[0] != "..":
            return climbing
        if root is None:
            return None
        absolute = [step for step in _collapsed(["", *root, *climbing]) if step != ".."]
    else:
        absolute = [step for step in _collapsed(value.split("/")) if step != ".."]
    if root is None:
        return None
    if absolute[: len(root)] == root:
        return absolute[len(root) :]
    return ["", *absolute]


def _collapsed(steps: list[str]) -> list[str]:
    """Resolves `.` and `..` by text; leading `..` stay."""
    found: list[str] = []
    for step in steps:
        if step in {"", "."}:
            continue
        if step == ".." and found and found[-1] != "..":
            found.pop()
        else:
            found.append(step)
    return found


def _followed(segments: list[str], links: Mapping[str, str]) -> list[str]:
    """Replaces the longest linked prefix, as often as links lead on to links."""
    for _ in range(limits.RESOURCE_KEY_SEGMENTS):
        for length in range(len(segments), 0, -1):
            target = links.get("/".join(segments[:length]))
            if target is not None:
                segments = [*_collapsed(target.split("/")), *segments[length:]]
                break
        else:
            return segments
    return []  # a cycle of links: the whole tree


def _bounded(key: str) -> str:
    """Cuts a key that is too long or too deep back to whole segments; nothing left means everything."""
    if len(key) > limits.RESOURCE_KEY_CHARS:
        key = key[: limits.RESOURCE_KEY_CHARS + 1].rpartition("/")[0]
    if key.count("/") >= limits.RESOURCE_KEY_SEGMENTS:
        key = "/".join(key.split("/")[: limits.RESOURCE_KEY_SEGMENTS])
    return key.rstrip("/") or ROOT


def ancestors(key: str) -> tuple[str, ...]:
    """Every proper ancestor of a key, the nearest first, the root last; none for the root."""
    if key == ROOT:
        return ()
    found: list[str] = []
    while (cut := key.rfind("/")) >= 0:
        key = key[:cut]
        found.append(key)
    found.append(ROOT)
    return tuple(found)


def conflict(one: str, other: str) -> bool:
    """Whether two keys can mean the same thing: equal, or one is an ancestor of the other."""
    if one == other or ROOT in {one, other}:
        return True
    shorter, longer = (one, other) if len(one) < len(other) else (other, one)
    return longer.startswith(shorter) and longer[len(shorter)] == "/"


def conflicts(ones: Iterable[str], others: Iterable[str]) -> bool:
    """Whether any key of one side is in conflict with any key of the other."""
    right = tuple(others)
    return any(conflict(one, other) for one in ones for other in right)
