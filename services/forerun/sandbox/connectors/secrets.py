"""Credentials of tools, by name (see `forerun.runtime.secrets`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forerun.runtime.errors import ErrorReason
from forerun.runtime.secrets import REFERENCE, named_secret
from forerun.sandbox.connectors.port import rejected


class Secrets:
    """Fills secrets into values.

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
        if not value.startswith(REFERENCE):
            return value
        name = value.removeprefix(REFERENCE)
        secret = named_secret(self._directory, name)
        if secret is None:
            raise rejected(
                ErrorReason.SETTING_INVALID,
                f"the secret {name} is not in secrets_directory of the sandbox service",
                secret=name,
            )
        return secret
