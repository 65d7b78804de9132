"""What the API server answers instead of what was asked for."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request failed. Never leaves the operator.

    Attributes:
        status: HTTP status; 0 where no answer came.
        reason: The server's own word, such as `Conflict`.
        retry_after_seconds: When it asks to come again.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{reason or status}: {message}" if message else str(reason or status))
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class Unreachable(ApiError):
    """No answer: the request may or may not have been carried out."""

    def __init__(self, what: str) -> None:
        super().__init__(0, "Unreachable", what)


class Missing(ApiError):
    """The object, or its whole kind, does not exist."""


class Conflicting(ApiError):
    """Somebody else was faster: read again."""


class Denied(ApiError):
    """This account may not."""


class Expired(ApiError):
    """The resource version is too old to go on from: list again."""


class Rejected(ApiError):
    """The request is wrong in itself, or the object breaks a rule."""


_KINDS: dict[int, type[ApiError]] = {
    400: Rejected,
    403: Denied,
    404: Missing,
    409: Conflicting,
    410: Expired,
    422: Rejected,
}


def error_of(status: int, body: dict[str, Any], retry_after: str | None = None) -> ApiError:
    """The error that an answer of the API server means.

    Args:
        status: HTTP status, or the code of a Status object in a watch.
        body: The Status object; anything else counts as empty.
        retry_after: The header of that name.
    """
    seconds = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    return _KINDS.get(status, ApiError)(status, str(body.get("reason", "")), str(body.get("message", "")), seconds)
