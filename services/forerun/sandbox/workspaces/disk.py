"""Small file work of workspaces: names, whole replacements, removal, and doing it beside the event loop."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.subjects import token
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.workspaces.trees import opened, remove_entry

_T = TypeVar("_T")

_MOST_NAME_BYTES: Final = 200


def file_name(identifier: str) -> str:
    """The name of a session's or fork's directory: one for each id, and never one that leads elsewhere.

    Raises:
        FailedPrecondition: The id is too long for a name.
    """
    name = token(identifier)
    if len(name) > _MOST_NAME_BYTES:
        raise FailedPrecondition(
            ErrorReason.ARGUMENT_INVALID, f"ids of sessions and forks are at most {_MOST_NAME_BYTES} bytes"
        )
    return name


def remove(directory: Path) -> None:
    """Removes a directory with everything in it. Idempotent."""
    if directory.parent.exists():
        with opened(str(directory.parent)) as parent:
            remove_entry(parent, directory.name)


def write_json(path: Path, content: object) -> None:
    """Replaces a file in one step, and has it on disk before what follows."""
    write_bytes(path, json.dumps(content).encode())


def write_bytes(path: Path, content: bytes) -> None:
    """As `write_json`, for bytes."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


async def in_thread(work: Callable[..., _T], *arguments: object) -> _T:
    """Runs file work outside the event loop, to its end: half a merge is worse than a late cancellation."""
    return await to_the_end(asyncio.to_thread(work, *arguments))
