"""Who calls.

Two kinds of tokens. *User tokens* stand in the token file (as digests, with tenant, principal, rights and role);
tenant and principal come from there and nowhere else. The *internal token* is shared by the services of one
installation; a call with it may carry the caller on whose behalf it is made. Tokens travel in `authorization: Bearer
...` and never enter a message, a journal or a log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from forerun.runtime.clock import Clock
from forerun.runtime.errors import (
    ErrorReason,
    FailedPrecondition,
    PermissionDenied,
    Unauthenticated,
)

AUTHORIZATION: Final = "authorization"
CALLER_HEADER: Final = "forerun-caller-bin"

_BEARER: Final = "bearer "
# Half of the second within which a revocation has to work; a look at the file costs a few microseconds.
_RELOAD_SECONDS: Final = 0.5
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_HOW_TO_GET_ONE: Final = (
    "in local mode `forerun up` writes one to run.json in its data directory; otherwise ask whoever runs the platform"
)


class Role(StrEnum):
    """What kind of credential a call came with."""

    USER = "user"
    """An agent or a person, by a token of the token file."""
    OPERATOR = "operator"
    """Whoever runs the platform, by a token with this role: may switch speculation for every tenant."""
    SERVICE = "service"
    """Another service of this installation."""


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a call is made. Empty strings: a service on its own behalf.

    Attributes:
        tenant: Who pays and is isolated.
        principal: On whose behalf the agent acts.
        credential_scope: Hex digest of the rights, part of an action's identity.
        role: The credential that was shown.
    """

    tenant: str
    principal: str
    credential_scope: str
    role: Role = Role.USER

    def acts_as(self, other: Caller) -> bool:
        """The same tenant, principal and rights, by whichever token."""
        mine = self.tenant, self.principal, self.credential_scope
        return mine == (other.tenant, other.principal, other.credential_scope)


_CALLER: Final[ContextVar[Caller | None]] = ContextVar("forerun_caller", default=None)


def use_caller(caller: Caller) -> None:
    """Sets the caller of the current task; the network's guard does it before each handler."""
    _CALLER.set(caller)


def current_caller() -> Caller:
    """The caller of the handler that runs.

    Raises:
        PermissionDenied: no tenant is known, because a service called on its own behalf or no handler runs.
    """
    caller = _CALLER.get()
    if caller is None or not caller.tenant:
        raise PermissionDenied(
            ErrorReason.CALLER_NOT_ALLOWED, "this call needs a tenant: a user token, or a service acting for a caller"
        )
    return caller


def require_service() -> None:
    """Admits only other services of this installation.

    Raises:
        PermissionDenied: the call came with a user token.
    """
    caller = _CALLER.get()
    if caller is None or caller.role is not Role.SERVICE:
        raise PermissionDenied(ErrorReason.CALLER_NOT_ALLOWED, "only services of this installation may call this")


def credential_scope(rights: str) -> str:
    """The hex digest of rights, which are words in any order."""
    return hashlib.sha256(" ".join(sorted(set(rights.split()))).encode()).hexdigest()


def token_digest(token: str) -> str:
    """What stands in a token file for a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def on_behalf_of(caller: Caller) -> tuple[tuple[str, bytes], ...]:
    """Metadata with which a service makes a call for a caller: `stub.Execute(request, metadata=on_behalf_of(c))`."""
    value = json.dumps([caller.tenant, caller.principal, caller.credential_scope], ensure_ascii=False)
    return ((CALLER_HEADER, value.encode()),)


class CallToken:
    """The credential that a process puts on its outgoing calls."""

    __slots__ = ("_metadata",)

    def __init__(self, token: str) -> None:
        self._metadata: tuple[tuple[str, str | bytes], ...] = ((AUTHORIZATION, f"Bearer {token}"),)

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """What to add to a call's metadata."""
        return self._metadata


class Authenticator:
    """Decides on callers by their tokens.

    Args:
        clock: Tells when to look at the file again.
        token_file: JSON `{"tokens": [{"sha256", "tenant", "principal", "scope", "role"}, ...]}`, where `role` is
            `user` and may be left out, or `operator`; a change of the file is seen within a second, which is how
            tokens are revoked. None admits no user tokens.
        internal_token: The shared token of the services; None admits no services.

    Raises:
        FailedPrecondition: the token file cannot be read or is wrong.
    """

    def __init__(self, clock: Clock, *, token_file: Path | None = None, internal_token: str | None = None) -> None:
        self._clock = clock
        self._file = token_file
        self._internal = None if internal_token is None else token_digest(internal_token)
        self._callers: Mapping[str, Caller] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._looked_at = clock.monotonic()
        self._version = 0
        if token_file is not None:
            self._stamp = _stamp(token_file)
            self._callers = read_token_file(token_file)

    def version(self) -> int:
        """Changes when the set of valid tokens may have changed."""
        self._refresh()
        return self._version

    def caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        """The caller that a call's metadata prove.

        Raises:
            Unauthenticated: no token, or one that is unknown or revoked.
            PermissionDenied: a user token together with a claim to act for somebody else.
        """
        token, claimed = _credentials(metadata or ())
        if token is None:
            raise Unauthenticated(
                ErrorReason.CREDENTIAL_MISSING,
                f"send a token as metadata 'authorization: Bearer TOKEN'; {_HOW_TO_GET_ONE}",
            )
        digest = token_digest(token)
        if self._internal is not None and hmac.compare_digest(digest, self._internal):
            return _claimed_caller(claimed)
        self._refresh()
        # Digests are looked up, not tokens: what the timing of the look-up tells is of no use for finding a token.
        caller = self._callers.get(digest)
        if caller is None:
            raise Unauthenticated(
                ErrorReason.CREDENTIAL_REFUSED, f"the token is not known here or was revoked; {_HOW_TO_GET_ONE}"
            )
        if claimed is not None:
            raise PermissionDenied(ErrorReason.CALLER_NOT_ALLOWED, "only a service may act for another caller")
        return caller

    def _refresh(self) -> None:
        now = self._clock.monotonic()
        if self._file is None or now - self._looked_at < _RELOAD_SECONDS:
            return
        self._looked_at = now
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return
            callers = read_token_file(self._file)
        except FailedPrecondition:
            # A file that is gone or broken admits nobody: failing closed is the only safe reading of a revocation.
            stamp, callers = None, {}
        self._stamp, self._callers = stamp, callers
        self._version += 1


def read_token_file(path: Path) -> Mapping[str, Caller]:
    """The callers of a token file by the digest of their token.

    Raises:
        FailedPrecondition: the file cannot be read or does not have the documented form; no token is repeated in it.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise _wrong_file(path, f"it is larger than {_MAX_FILE_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise _wrong_file(path, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _wrong_file(path, "it is not JSON") from error
    entries = document.get("tokens") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise _wrong_file(path, 'it has no list "tokens"')
    callers: dict[str, Caller] = {}
    for index, entry in enumerate(entries):
        digest, caller = _entry(path, index, entry)
        if digest in callers:
            raise _wrong_file(path, f"token {index} stands there twice")
        callers[digest] = caller
    return callers


def _entry(path: Path, index: int, entry: Any) -> tuple[str, Caller]:
    keys = ("sha256", "tenant", "principal", "scope")
    strings = isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())
    if not strings or set(entry) - {"role"} != set(keys):
        raise _wrong_file(path, f"token {index} needs exactly the strings {', '.join(keys)}, and role where it has one")
    role = entry.get("role", Role.USER.value)
    if role not in (Role.USER.value, Role.OPERATOR.value):
        raise _wrong_file(path, f"role of token {index} is neither user nor operator")
    digest = entry["sha256"].lower()
    if len(digest) != 64 or any(character not in "0123456789abcdef" for character in digest):
        raise _wrong_file(path, f"sha256 of token {index} is not 64 hexadecimal digits")
    if not entry["tenant"] or not entry["principal"]:
        raise _wrong_file(path, f"tenant and principal of token {index} must not be empty")
    return digest, Caller(entry["tenant"], entry["principal"], credential_scope(entry["scope"]), Role(role))


def _wrong_file(path: Path, what: str) -> FailedPrecondition:
    return FailedPrecondition(
        ErrorReason.SETTING_INVALID, f"the token file {path} cannot be used: {what}", metadata={"file": str(path)}
    )


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise _wrong_file(path, f"it cannot be read: {error.strerror}") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _credentials(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[str | None, bytes | None]:
    token: str | None = None
    claimed: bytes | None = None
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str) and value[: len(_BEARER)].lower() == _BEARER:
            token = value[len(_BEARER) :]
        elif key == CALLER_HEADER and isinstance(value, bytes):
            claimed = value
    return token, claimed


def _claimed_caller(claimed: bytes | None) -> Caller:
    if claimed is None:
        return Caller("", "", "", Role.SERVICE)
    try:
        tenant, principal, scope = json.loads(claimed)
    except (ValueError, TypeError) as error:
        raise PermissionDenied(ErrorReason.CALLER_NOT_ALLOWED, f"{CALLER_HEADER} is malformed") from error
    return Caller(str(tenant), str(principal), str(scope), Role.SERVICE)
