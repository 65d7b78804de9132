"""Part of requirements.lock: what the platform needs when it runs, or what one named package needs.

`locked.py requirements.lock [PACKAGE]` prints pins with their hashes. The lock file says behind each pin what asked for
it, so nothing is resolved again: an image gets exactly what the tests ran with, without what only developers need.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = "forerun (pyproject.toml)"
"""How the lock file names the distribution itself; its development group is `(pyproject.toml:dev)`."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One package of the lock file.

    Attributes:
        name: The package.
        text: Its lines, without the comments.
        asked_by: Who asked for it.
    """

    name: str
    text: str
    asked_by: frozenset[str]


def pins(lock: str) -> list[Pin]:
    """The packages of a lock file, in its order."""
    found = []
    for entry in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE):
        if "==" not in entry:
            continue
        lines = entry.splitlines()
        comments = " ".join(line.strip(" #") for line in lines if line.lstrip().startswith("#"))
        asked_by = frozenset(re.findall(r"forerun \(pyproject\.toml(?::\w+)?\)|[\w.-]+", comments.removeprefix("via")))
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        found.append(Pin(re.split(r"[=\[ ]", entry, maxsplit=1)[0], text, asked_by))
    return found


def needed(lock: str, package: str | None = None) -> list[Pin]:
    """The pins that the platform needs when it runs, or that `package` and all it needs are, in the lock's order.

    Raises:
        KeyError: the lock file does not hold `package`.
    """
    everything = pins(lock)
    if package is None:
        chosen = {pin.name for pin in everything if PROJECT in pin.asked_by}
    else:
        chosen = {pin.name for pin in everything if pin.name == package}
        if not chosen:
            raise KeyError(package)
    grown = True
    while grown:
        more = {pin.name for pin in everything if pin.asked_by & chosen} - chosen
        chosen |= more
        grown = bool(more)
    return [pin for pin in everything if pin.name in chosen]


def main() -> int:
    """Runs the command line."""
    lock = Path(sys.argv[1]).read_text()
    print(*(pin.text for pin in needed(lock, *sys.argv[2:3])), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
