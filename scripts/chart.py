"""The chart's README, from its values: the comment above a value is its meaning, its default is what stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHART = Path("helm/forerun")

_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]\w*):(?: (?P<value>.*))?$")
_HEAD = """\
# Chart forerun

Generated from values.yaml; do not edit. [docs/install.md](../../docs/install.md) tells how to install it.

`profiles/` holds values to begin with: `small.yaml` for one small node, `ha.yaml` for a cluster in which no single
node is missed, `external-nats.yaml` for a broker of your own.

| value | default | meaning |
| --- | --- | --- |
"""


@dataclass(frozen=True, slots=True)
class Value:
    """One value.

    Attributes:
        path: Its name, with dots.
        default: As it stands in the file.
        meaning: The comment above it.
    """

    path: str
    default: str
    meaning: str


def values(text: str) -> Iterator[Value]:
    """The values of a file in its order.

    Raises:
        ValueError: one has no comment.
    """
    above: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.strip().lstrip("#").strip())
            continue
        found = _KEY.match(line)
        if not found:
            comment = []
            continue
        indent = len(found["indent"])
        above = [one for one in above if one[0] < indent]
        path = ".".join([*(key for _, key in above), found["key"]])
        if found["value"]:
            if not comment:
                raise ValueError(f"{path} has no comment that says what it means")
            yield Value(path, found["value"], " ".join(comment))
        above.append((indent, found["key"]))
        comment = []


def readme(text: str) -> str:
    """The README of a chart with these values."""
    rows = [f"| `{one.path}` | `{one.default}` | {one.meaning.replace('|', chr(92) + '|')} |" for one in values(text)]
    return _HEAD + "\n".join(rows) + "\n"
