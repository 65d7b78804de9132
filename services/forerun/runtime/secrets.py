"""Credentials of tools and models, by name: files in a directory that only the service can read.

A policy says `secret:NAME`, or the name alone; the value is read at the moment of use, so that a rotated one is used at
once and none stays in memory, and it never gets into a message, a log or an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

REFERENCE: Final = "secret:"
"""How a value says that it stands for a secret."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_BYTES: Final = 64 * 1024


def named_secret(directory: Path | None, name: str) -> str | None:
    """The secret of that name; None where there is no directory, no such file, or the name is none of a file.

    Args:
        directory: One file for each secret.
        name: Its name.
    """
    if directory is None or not _NAME.fullmatch(name):
        return None
    try:
        with (directory / name).open("rb") as file:
            return file.read(_MOST_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
