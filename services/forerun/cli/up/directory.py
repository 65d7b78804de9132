"""The data directory of local mode: who may call, as whom services connect, and where everything runs."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.runtime.auth import Role, token_digest
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.ids import Ids
from forerun.runtime.secrets import write_secret

TENANT = "local"
_TOKEN_BYTES = 32

STARTER_POLICY = """\
# What may run ahead, and where tools live. Tools without a contract here count as writes: they run when they are
# asked for, never before. `forerun policy check FILE` shows what is in force; changes take effect within seconds.
policies: []
# - name: mine
#   mode: MODE_EXACT
#   tools:
#     - tool: get_order
#       effect: EFFECT_READ
#       reads: [{template: "orders/{order_id}", scope: RESOURCE_SCOPE_SHARED}]
#       speculate: true
servers: []
# - name: shop
#   tools:
#     - name: get_order
#       http: {method: GET, url: "http://127.0.0.1:8000/orders/{order_id}"}
"""


@dataclass(slots=True)
class DataDirectory:
    """Files of one local platform. Everything secret is readable by its owner only.

    Attributes:
        path: The directory, absolute.
    """

    path: Path
    _lock: int | None = field(default=None, init=False)

    @property
    def run_file(self) -> Path:
        """Addresses and process ids of what runs, for people and clients."""
        return self.path / "run.json"

    @property
    def token_file(self) -> Path:
        """The user's token."""
        return self.path / "token"

    @property
    def tokens_file(self) -> Path:
        """Digests of tokens, for the services."""
        return self.path / "tokens.json"

    @property
    def internal_token_file(self) -> Path:
        """The token that the services share."""
        return self.path / "secrets" / "internal-token"

    @property
    def policy_file(self) -> Path:
        """The policy file that is used where none is named."""
        return self.path / "policy.yaml"

    @property
    def tool_secrets(self) -> Path:
        """One file for each secret that tool definitions name as `secret:NAME`."""
        return self.path / "tool-secrets"

    def password_file(self, user: str) -> Path:
        """The broker's password of a user."""
        return self.path / "secrets" / f"nats-{user}"

    def log_file(self, service: str) -> Path:
        """A service's log."""
        return self.path / "logs" / f"{service}.log"

    def data(self, service: str) -> Path:
        """A service's own data."""
        return self.path / service

    def look(self) -> None:
        """Tells whether `lock` would get the directory, and makes nothing.

        Raises:
            FailedPrecondition: see `lock`.
        """
        there = self.path
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise self._unusable(f"{there} is no directory" if not there.is_dir() else f"{there} cannot be written")
        with contextlib.suppress(FileNotFoundError):
            os.close(self._locked(os.open(self._lock_file, os.O_RDWR | os.O_CLOEXEC)))

    def lock(self) -> None:
        """Takes the directory for this process.

        Raises:
            FailedPrecondition: another platform has it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in ("secrets", "logs", "tool-secrets"):
                (self.path / folder).mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error.strerror or "it cannot be written") from error
        self._lock = self._locked(descriptor)

    @property
    def _lock_file(self) -> Path:
        return self.path / "lock"

    def _unusable(self, why: str) -> FailedPrecondition:
        return FailedPrecondition(
            ErrorReason.SETTING_INVALID,
            f"the data directory {self.path} cannot be used: {why}; choose another one with --data",
            metadata={"directory": str(self.path)},
        )

    def _locked(self, descriptor: int) -> int:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise FailedPrecondition(
                ErrorReason.SETTING_INVALID,
                f"a platform runs in {self.path} already; stop it, or choose another directory with --data",
                metadata={"directory": str(self.path)},
            ) from error
        return descriptor

    def release(self) -> None:
        """Lets others have the directory."""
        self.run_file.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def prepare(self, passwords: Mapping[str, str], ids: Ids) -> str:
        """Writes tokens, passwords and, where there is none, a policy file to start with; the user's token.

        The user's token stays the same over restarts, so that agents need not be told a new one. The others change.
        """
        token = self._kept_token() or ids.token(_TOKEN_BYTES)
        write_secret(self.token_file, token + "\n")
        entry = {
            "sha256": token_digest(token),
            "tenant": TENANT,
            "principal": _principal(),
            "scope": "local",
            "role": Role.OPERATOR.value,
        }
        write_secret(self.tokens_file, json.dumps({"tokens": [entry]}) + "\n")
        write_secret(self.internal_token_file, ids.token(_TOKEN_BYTES) + "\n")
        for user, password in passwords.items():
            write_secret(self.password_file(user), password + "\n")
        if not self.policy_file.exists():
            self.policy_file.write_text(STARTER_POLICY)
        return token

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Says what runs where."""
        write_secret(self.run_file, json.dumps(run, indent=2) + "\n")

    def _kept_token(self) -> str | None:
        try:
            return self.token_file.read_text().strip() or None
        except OSError:
            return None


def _principal() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as containers have it
        return TENANT
