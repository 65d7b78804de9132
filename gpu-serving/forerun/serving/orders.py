"""Telling coupled models while they run how deep drafts may be, and whose histories are erased.

By files of one folder and not by requests: so every version of the loop hears it, also one that only ends its texts,
and one whose process is started again knows it before its first text. What the files say: `backend/orders.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from forerun.serving.backend.orders import BOUNDS, ERASURES, Bounds


class OrderFolder:
    """Writes the files, each as a whole.

    Args:
        path: The folder; it is made where there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._written: dict[str, str] = {}

    def bound(self, bounds: Bounds) -> None:
        """How deep drafts may be from now on."""
        self._write(BOUNDS, bounds.text())

    def erased(self, erasures: Mapping[str, str] | None) -> None:
        """The last erasure of each tenant that had one; None: nobody knows now."""
        self._write(ERASURES, json.dumps(None if erasures is None else dict(erasures)))

    def _write(self, name: str, text: str) -> None:
        if self._written.get(name) == text:
            return
        fresh = self.path / f"{name}.new"
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.path / name)
        self._written[name] = text
