"""The file of measured step times, read again where it changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from forerun.core.errors import CoreError
from forerun.core.tokens.depth import DepthController, StepTable


class TableFile:
    """Keeps a controller's table equal to a file. A file that is damaged later leaves the table as it was.

    Args:
        path: None: there is no table, and the controller has its prior.
        controller: Gets it.

    Raises:
        CoreError: The file is no table.
        OSError: It cannot be read.
    """

    def __init__(self, path: str | None, controller: DepthController) -> None:
        self._path = None if path is None else Path(path)
        self._controller = controller
        self._seen: tuple[int, int] | None = None
        if self._path is not None:
            self._read(self._path)

    def look(self) -> None:
        """Reads the file where it has changed."""
        if self._path is None:
            return
        try:
            stamp = self._stamp(self._path)
            if stamp != self._seen:
                self._seen = stamp  # what is damaged is said once
                self._read(self._path)
        except (OSError, ValueError, CoreError) as error:
            sys.stderr.write(f"step table {self._path.name}: {error}; the one before stays\n")

    def _read(self, path: Path) -> None:
        self._seen = self._stamp(path)
        self._controller.reload(StepTable.from_json(json.loads(path.read_text(encoding="utf-8"))))

    @staticmethod
    def _stamp(path: Path) -> tuple[int, int]:
        found = path.stat()
        return found.st_mtime_ns, found.st_size
