"""Credentials of tools and models, by name: files in a directory that only the service can read.

A policy says `secret:NAME`, or the name alone; the value is read at the moment of use, so that a rotated one is used at
once and none stays in memory, and it never gets into a message, a log or an error. Also how such a file is written.
"""

from __future__ import annotations

import os
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


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only its owner may read, whole or not at all."""
    half = path.with_name(path.name + ".new")
    half.unlink(missing_ok=True)
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    half.replace(path)
