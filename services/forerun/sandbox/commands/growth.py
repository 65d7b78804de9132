"""How much a command has written to disk."""

from __future__ import annotations

import os


def growth_bytes(directories: tuple[str, ...], *, most_entries: int) -> int:
    """Bytes on disk below directories, counting at most so many entries. Follows no links; what vanishes is fine."""
    total, seen = 0, 0
    pending = list(directories)
    while pending and seen < most_entries:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
    return total
