"""Erasing what model servers remember of a tenant: what is asked of them, and what they say about themselves.

The last erasure of each tenant stays in the key-value store for ever. Whoever serves models follows it, and one that
was away hears of it before it reads what it saved. Each erasure has a name: what was said after it stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class ErasedHistories:
    """What an erasure took away at one server.

    Attributes:
        histories: In memory.
        tokens: In them.
        files: On disk.
    """

    histories: int
    tokens: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What a model server says about itself.

    Attributes:
        name: Of the server.
        profile: That it serves.
        depth: Tokens that may be drafted for a text in a pass, at most; None: as many as the profile allows.
        source: Who says so.
        erased: The latest erasures, by their names, which are short, whatever tenants are called.
    """

    name: str
    profile: str
    depth: int | None
    source: str
    erased: Mapping[str, ErasedHistories] = field(default_factory=dict)

    def content(self) -> bytes:
        """For the key-value store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, content: bytes) -> ServerReport:
        """What `content` gave.

        Raises:
            ValueError, KeyError, TypeError: It is none.
        """
        given = json.loads(content)
        erased = {str(erasure): ErasedHistories(**one) for erasure, one in given.pop("erased").items()}
        return cls(**given, erased=erased)


def erasure_content(erasure: str, at: float) -> bytes:
    """An erasure for the key-value store, whose key is the tenant.

    Args:
        erasure: Its name.
        at: When it was asked for, in seconds since the epoch; for people.
    """
    return json.dumps({"erasure": erasure, "at": at}).encode()


def erasure_of(content: bytes) -> str:
    """The name of an erasure.

    Raises:
        ValueError, KeyError, TypeError: It is none.
    """
    return str(json.loads(content)["erasure"])
