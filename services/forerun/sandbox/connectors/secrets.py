"""Credentials of tools, by name: files in a directory that only this service can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.port import rejected

_REFERENCE: Final = "secret:"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_BYTES: Final = 64 * 1024


class Secrets:
    """Reads secrets at the moment of use, so that a rotated one is used at once and none stays in memory.

    Args:
        directory: One file for each secret; None knows no secrets.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def resolve(self, values: Mapping[str, str]) -> dict[str, str]:
        """The values, with each `secret:NAME` replaced.

        Raises:
            ToolFault: A secret is not there.
        """
        return {name: self._resolved(value) for name, value in values.items()}

    def _resolved(self, value: str) -> str:
        if not value.startswith(_REFERENCE):
            return value
        name = value.removeprefix(_REFERENCE)
        if self._directory is not None and _NAME.fullmatch(name):
            try:
                with (self._directory / name).open("rb") as file:
                    return file.read(_MOST_BYTES).decode().strip()
            except (OSError, UnicodeDecodeError):
                pass
        raise rejected(
            ErrorReason.SETTING_INVALID,
            f"the secret {name} is not in secrets_directory of the sandbox service",
            secret=name,
        )
