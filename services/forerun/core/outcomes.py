"""The closed sets of endings: how a call ends, how it is served, how a speculation ends."""

from enum import StrEnum


class Mode(StrEnum):
    """What runs ahead of a session. `DESIGN` section 2."""

    OFF = "off"
    SHADOW = "shadow"
    EXACT = "exact"

    @property
    def rank(self) -> int:
        """How much a mode allows: an override can only lower it."""
        return (Mode.OFF, Mode.SHADOW, Mode.EXACT).index(self)


class CallStatus(StrEnum):
    """How an authoritative call ended. Exactly one for each call."""

    OK = "ok"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    OUTCOME_UNKNOWN = "outcome_unknown"


class Served(StrEnum):
    """How an authoritative call was answered."""

    UNSPECIFIED = "unspecified"
    DIRECT = "direct"
    READY = "ready"
    JOINED = "joined"
    MEMO = "memo"
    SHARED = "shared"
    EARLY = "early"


class Outcome(StrEnum):
    """How a speculation ended. Exactly one for each speculation."""

    READY = "ready"
    JOINED = "joined"
    MISS = "miss"
    STALE = "stale"
    PREEMPTED = "preempted"
    EXPIRED = "expired"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def hit(self) -> bool:
        """True for the two endings whose result was committed."""
        return self in (Outcome.READY, Outcome.JOINED)
