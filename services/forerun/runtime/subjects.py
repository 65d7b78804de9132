"""The names of everything on the bus, built from ids in one place.

An id becomes one token of a subject by an encoding like that of URLs: letters, digits, `_` and `-` stay, every other
byte of its UTF-8 form becomes `=XX`, and the empty id becomes `=`. So an id may hold dots, wildcards, spaces or a line
break without leaving its token, two ids never share a token, and the id can be read back. Keys of the key-value store
use the same encoding for each of their `/`-separated parts.

Subjects, `v1` being the version of their meaning:

| subject | what |
| --- | --- |
| `forerun.v1.event.<partition>.<tenant>.<agent>.<session>` | journal of a session; its messages are events |
| `forerun.v1.ledger.<tenant>.<session>` | ledger lines |
| `forerun.v1.audit.<tenant>` | audit tasks, each taken by one verifier |
| `forerun.v1.candidates.<owner>` | candidates for the replica that owns the session |
| `forerun.v1.load.<worker>` | load reports |
| `forerun.v1.demand.<owner>` | what the orchestrator wants of all pools |
| `forerun.v1.cancel.<worker>` | executions that a worker has to stop |
| `forerun.v1.control.<topic>` | broadcasts to every process, such as the kill switch |
| `forerun.v1.deadletter.<stream>.<consumer>` | what a consumer could not process |
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from forerun.runtime.errors import ErrorReason, InvalidArgument

PREFIX: Final = "forerun.v1"

# A subject travels in one protocol line, of which the broker reads at most 4 KiB together with inbox and sizes.
MAX_SUBJECT_BYTES: Final = 2048

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPE: Final = re.compile(r"=([0-9A-F]{2})")
_TOKEN: Final = re.compile(r"=|(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+")
_SUBJECT: Final = re.compile(r"[^\s.*>]+(?:\.[^\s.*>]+)*")
_PATTERN: Final = re.compile(r"(?:(?:\*|[^\s.*>]+)\.)*(?:\*|>|[^\s.*>]+)")
_SAFE_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_EMPTY_TOKEN: Final = "="


@lru_cache(maxsize=16_384)
def token(identifier: str) -> str:
    """The token that stands for an id. Reversible by `identifier`, for every string that UTF-8 can hold."""
    if _PLAIN.fullmatch(identifier):
        return identifier
    if not identifier:
        return _EMPTY_TOKEN
    try:
        encoded = identifier.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "an id must be valid Unicode text") from error
    return "".join(chr(byte) if byte in _SAFE_BYTES else f"={byte:02X}" for byte in encoded)


def identifier(text: str) -> str:
    """The id that a token stands for.

    Raises:
        InvalidArgument: `text` is no token that `token` gives.
    """
    if text == _EMPTY_TOKEN:
        return ""
    if not _TOKEN.fullmatch(text):
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "not an encoded id")
    if _EMPTY_TOKEN not in text:
        return text
    octets = _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), text).encode("latin-1")
    try:
        decoded = octets.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "not an encoded id") from error
    if token(decoded) != text:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "not an encoded id: it escapes what needs no escape")
    return decoded


@lru_cache(maxsize=16_384)
def partition(tenant: str, agent: str, *, partitions: int) -> int:
    """The predictor partition of an agent: stable across processes, machines and releases.

    Args:
        tenant: The tenant.
        agent: The agent of the tenant.
        partitions: How many there are; the same number everywhere in a platform.
    """
    digest = hashlib.blake2b(f"{token(tenant)}.{token(agent)}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % partitions


def event(number: int, tenant: str, agent: str, session: str) -> str:
    """The journal of a session. `number` is the partition of (tenant, agent)."""
    return f"{PREFIX}.event.{number}.{token(tenant)}.{token(agent)}.{token(session)}"


def events_of_partition(number: int) -> str:
    """The pattern of all journals of one predictor partition."""
    return f"{PREFIX}.event.{number}.>"


def ledger(tenant: str, session: str) -> str:
    """The ledger lines of a session."""
    return f"{PREFIX}.ledger.{token(tenant)}.{token(session)}"


def audit(tenant: str) -> str:
    """Audit tasks of a tenant."""
    return f"{PREFIX}.audit.{token(tenant)}"


def candidates(owner: str) -> str:
    """Candidates for the sessions that the replica `owner` holds."""
    return f"{PREFIX}.candidates.{token(owner)}"


def load(worker: str) -> str:
    """Load reports of a worker."""
    return f"{PREFIX}.load.{token(worker)}"


def loads() -> str:
    """The pattern of the load reports of all workers."""
    return f"{PREFIX}.load.*"


def demand(owner: str) -> str:
    """What the orchestrator `owner` wants of all pools."""
    return f"{PREFIX}.demand.{token(owner)}"


def demands() -> str:
    """The pattern of the demand reports of all orchestrators."""
    return f"{PREFIX}.demand.*"


def cancel(worker: str) -> str:
    """Executions that a worker has to stop."""
    return f"{PREFIX}.cancel.{token(worker)}"


def control(topic: str) -> str:
    """A broadcast to every process, such as the kill switch (`switch`)."""
    return f"{PREFIX}.control.{token(topic)}"


def dead_letter(stream: str, consumer: str) -> str:
    """What `consumer` of `stream` could not process."""
    return f"{PREFIX}.deadletter.{token(stream)}.{token(consumer)}"


def check_subject(subject: str) -> None:
    """Refuses what nothing can be published to.

    Raises:
        InvalidArgument: wildcards, empty tokens, white space, or longer than `MAX_SUBJECT_BYTES`.
    """
    _check(subject, _SUBJECT)


def check_pattern(pattern: str) -> None:
    """Refuses what cannot be listened to: as `check_subject`, but `*` and a last `>` are allowed as whole tokens."""
    _check(pattern, _PATTERN)


def _check(subject: str, allowed: re.Pattern[str]) -> None:
    if len(subject.encode()) > MAX_SUBJECT_BYTES:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"a subject is longer than {MAX_SUBJECT_BYTES} bytes; use a digest for long ids",
            metadata={"size_bytes": str(len(subject.encode())), "limit_bytes": str(MAX_SUBJECT_BYTES)},
        )
    if not allowed.fullmatch(subject):
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "malformed subject; build it with forerun.runtime.subjects")


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one that a pattern with `*` (one token) and a final `>` (one or more) listens to."""
    if "*" not in pattern and ">" not in pattern:
        return pattern == subject
    if "*" not in pattern and pattern.endswith(".>"):
        # The commonest form, on the way of every message.
        return len(subject) >= len(pattern) and subject.startswith(pattern[:-1])
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        if len(given) < len(wanted):
            return False
        wanted = wanted[:-1]
    elif len(given) != len(wanted):
        return False
    return all(want in ("*", got) for want, got in zip(wanted, given, strict=False))


def encode_key(key: str) -> str:
    """The broker's form of a key: its `/`-separated parts as tokens, joined by dots.

    Raises:
        InvalidArgument: longer than `MAX_SUBJECT_BYTES` when encoded.
    """
    encoded = ".".join(token(part) for part in key.split("/"))
    if len(encoded) > MAX_SUBJECT_BYTES:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"a key is longer than {MAX_SUBJECT_BYTES} bytes when encoded; use a digest for long parts",
            metadata={"size_bytes": str(len(encoded)), "limit_bytes": str(MAX_SUBJECT_BYTES)},
        )
    return encoded


def decode_key(encoded: str) -> str:
    """The key of its broker's form."""
    return "/".join(identifier(part) for part in encoded.split("."))


def key_filter(prefix: str) -> str:
    """The narrowest pattern that holds every key starting with `prefix`; the rest is filtered by the reader."""
    whole = prefix.split("/")[:-1]
    return ".".join([*(token(part) for part in whole), ">"])
