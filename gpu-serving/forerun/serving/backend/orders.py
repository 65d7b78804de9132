"""What the loop is told while it runs: how deep drafts may be, for whom nothing is drafted, who was erased.

It is told by files in one folder, which whoever keeps the server replaces (`forerun.serving.orders`): every version of
the loop sees them, also one that still ends its texts, and one that is started again knows them before its first text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.core.tokens.ceiling import Ceiling, CeilingSource

BOUNDS: Final = "bounds.json"
ERASURES: Final = "erasures.json"

LOOK_SECONDS: Final = 0.05
"""Between two looks at the files, which come with every pass: far below the second in which a switch has to work."""

FREE: Final = Ceiling(None, CeilingSource.PROFILE)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How deep drafts may be.

    Attributes:
        ceiling: For everybody.
        off: Tenants for whom nothing is drafted.
    """

    ceiling: Ceiling = FREE
    off: frozenset[str] = frozenset()

    def most(self, tenant: str, otherwise: int) -> int:
        """Tokens drafted for a text of a tenant in a pass, at most.

        Args:
            tenant: Whose text it is.
            otherwise: Bound where nobody says anything.
        """
        if tenant in self.off:
            return 0
        depth = self.ceiling.depth
        return otherwise if depth is None else max(0, min(depth, otherwise))

    def text(self) -> str:
        """As JSON."""
        ceiling = self.ceiling
        return json.dumps({"depth": ceiling.depth, "source": ceiling.source.value, "off": sorted(self.off)})

    @classmethod
    def read(cls, text: str) -> Bounds:
        """What `text` gave.

        Raises:
            ValueError, KeyError, TypeError: It is none.
        """
        given = json.loads(text)
        depth = given["depth"]
        ceiling = Ceiling(None if depth is None else int(depth), CeilingSource(given["source"]))
        return cls(ceiling, frozenset(map(str, given["off"])))


class _File:
    """A file that is read where it has changed. What cannot be read is said once, and what was read last holds."""

    def __init__(self, path: Path, read: Callable[[str], None]) -> None:
        self._path = path
        self._read = read
        self._seen: tuple[int, int, int] | None = None

    def look(self) -> None:
        """Reads it where it has changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._read(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            sys.stderr.write(f"{self._path.name} cannot be read, what it said before holds: {error}\n")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class Orders:
    """Follows the files.

    Args:
        folder: Where they are; None: nobody gives orders.
        now: Seconds, never going backwards.
        bounded: Told of the bounds when they change.
        erased: Told of the last erasure of each tenant that had one, when one is new.
    """

    def __init__(
        self,
        folder: Path | None,
        now: Callable[[], float],
        *,
        bounded: Callable[[Bounds], None],
        erased: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._now = now
        self._looked_at = float("-inf")
        self._bounded = bounded
        self._erased = erased
        self._files: list[_File] = []
        if folder is not None:
            self._files = [_File(folder / BOUNDS, self._read_bounds), _File(folder / ERASURES, self._read_erasures)]
        self.bounds = Bounds()

    def look(self, *, at_once: bool = False) -> Bounds:
        """The bounds that hold now.

        Args:
            at_once: Also where the last look was only a moment ago.
        """
        now = self._now()
        if at_once or now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            for one in self._files:
                one.look()
        return self.bounds

    def _read_bounds(self, text: str) -> None:
        self.bounds = Bounds.read(text)
        self._bounded(self.bounds)

    def _read_erasures(self, text: str) -> None:
        self._erased(_erasures(text) or {})


def known_erasures(folder: Path | None) -> dict[str, str] | None:
    """The last erasure of each tenant that had one; None: nobody knows now.

    Args:
        folder: Where orders are; None: nobody gives any, and nobody is erased but by requests.
    """
    if folder is None:
        return {}
    try:
        return _erasures((folder / ERASURES).read_text(encoding="utf-8"))
    except (OSError, ValueError, AttributeError):
        return None


def _erasures(text: str) -> dict[str, str] | None:
    given = json.loads(text)
    return None if given is None else {str(tenant): str(erasure) for tenant, erasure in given.items()}
