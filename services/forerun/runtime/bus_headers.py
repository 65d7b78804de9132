"""Headers on the wire, and the size of a message with them. Both buses use this, so that both refuse the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from forerun.runtime.bus import MAX_MESSAGE_BYTES
from forerun.runtime.bus_errors import MessageTooLarge
from forerun.runtime.errors import ErrorReason, InvalidArgument

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_LAST_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
STATUS: Final = "Status"
DESCRIPTION: Final = "Description"

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_LINE: Final = b"NATS/1.0"
_BROKERS_OWN: Final = "nats-"
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BAD_VALUE: Final = re.compile(r"[\r\n\0]|^\s|\s$")


def check_headers(headers: Mapping[str, str] | None) -> None:
    """Refuses headers that would not arrive as they are.

    Raises:
        InvalidArgument: a name that is no token or belongs to the broker, a value with a line break or space around it.
    """
    for name, value in (headers or NO_HEADERS).items():
        if not _NAME.fullmatch(name) or name.lower().startswith(_BROKERS_OWN):
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"header name {name[:64]!r} is not allowed")
        if _BAD_VALUE.search(value):
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"header {name!r} holds a line break or outer space")


def append_headers(
    headers: Mapping[str, str] | None, message_id: str | None, expected_last_sequence: int | None
) -> bytes:
    """The header block of an append; empty when it needs none. Raises InvalidArgument as `check_headers`."""
    if headers is None and message_id is None and expected_last_sequence is None:
        return b""
    check_headers(headers)
    lines = [f"{name}: {value}\r\n" for name, value in (headers or NO_HEADERS).items()]
    if message_id is not None:
        if not message_id or _BAD_VALUE.search(message_id):
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "a message id is empty or holds a line break or space")
        lines.append(f"{MESSAGE_ID}: {message_id}\r\n")
    if expected_last_sequence is not None:
        lines.append(f"{EXPECTED_LAST_SUBJECT_SEQUENCE}: {expected_last_sequence}\r\n")
    return block("".join(lines))


def block(lines: str) -> bytes:
    """A header block of complete `Name: value` lines; empty for none."""
    return f"NATS/1.0\r\n{lines}\r\n".encode() if lines else b""


def check_size(header_block: bytes, data: bytes, limit_bytes: int = MAX_MESSAGE_BYTES) -> None:
    """Refuses what the broker would cut the connection for.

    Raises:
        MessageTooLarge: headers and body together are above the limit.
    """
    size = len(header_block) + len(data)
    if size > limit_bytes:
        raise MessageTooLarge(size, limit_bytes)


def parse(header_block: bytes) -> dict[str, str]:
    """All headers of a received block; a status line becomes `Status` and `Description`."""
    first, _, rest = header_block.partition(b"\r\n")
    headers: dict[str, str] = {}
    if len(first) > len(_LINE):
        status, _, description = first[len(_LINE) + 1 :].decode("utf-8", "replace").partition(" ")
        headers[STATUS] = status
        headers[DESCRIPTION] = description
    for line in rest.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return headers


def callers_own(header_block: bytes | None) -> Mapping[str, str]:
    """The headers of a received block without those of the broker."""
    if not header_block:
        return NO_HEADERS
    if len(header_block.partition(b"\r\n")[0]) > len(_LINE):
        return {name: value for name, value in parse(header_block).items() if not name.lower().startswith(_BROKERS_OWN)}
    # Most messages have no status and several headers of the broker's own: nothing is made of those.
    headers: dict[str, str] = {}
    for line in header_block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and not name.lower().startswith(b"nats-"):
            headers[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return headers
