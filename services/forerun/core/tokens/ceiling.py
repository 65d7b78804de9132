"""How deep drafts may be at most, and who says so: the governor's cap on extra compute, and the kill switch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CeilingSource(StrEnum):
    """Who says how deep drafts may be."""

    PROFILE = "profile"
    """Nobody but the profile of the model server."""
    POOL = "pool"
    """The operator, for the pool whose agents are served."""
    SWITCH = "switch"
    """The kill switch: nothing is drafted for anybody."""
    UNHEARD = "unheard"
    """Whoever decides has not been heard for too long: what was said last holds."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """How deep drafts may be.

    Attributes:
        depth: Tokens drafted for a text in a pass, at most; None: as many as the profile allows.
        source: Who says so.
    """

    depth: int | None
    source: CeilingSource


def ceiling(pool: int | None, *, off: bool, silent_seconds: float, bound_seconds: float) -> Ceiling:
    """The ceiling that holds now.

    Args:
        pool: What was heard last of the pool's cap; None: it has none, or nothing was heard yet.
        off: The kill switch was off for everyone when it was heard last.
        silent_seconds: Since when neither could be heard.
        bound_seconds: A silence up to this is no news.
    """
    depth = 0 if off else pool
    if silent_seconds > bound_seconds:
        return Ceiling(depth, CeilingSource.UNHEARD)
    if off:
        return Ceiling(depth, CeilingSource.SWITCH)
    return Ceiling(depth, CeilingSource.PROFILE if pool is None else CeilingSource.POOL)
