"""Digests of objects, as every bus writes them: `sha256:<64 lower-case hexadecimal digits>`."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Final

from forerun.runtime.errors import ErrorReason, InvalidArgument

PREFIX: Final = "sha256:"

_HEXADECIMAL: Final = re.compile(r"sha256:([0-9a-f]{64})")
_HASH_IN_THREAD_BYTES: Final = 1024 * 1024


async def digest_of(data: bytes) -> str:
    """The digest of some content."""
    if len(data) >= _HASH_IN_THREAD_BYTES:
        # Hashing releases the interpreter; on the loop a large object would hold up every session.
        digest = await asyncio.to_thread(hashlib.sha256, data)
    else:
        digest = hashlib.sha256(data)
    return PREFIX + digest.hexdigest()


def hexadecimal(digest: str) -> str:
    """The digits of a digest.

    Raises:
        InvalidArgument: it is none.
    """
    match = _HEXADECIMAL.fullmatch(digest)
    if match is None:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "a digest looks like sha256:<64 hexadecimal digits>")
    return match.group(1)
