"""`Retry-After` in all forms in which providers send it (the platform's own reading, compared by a contract test)."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping
from typing import Final

_MILLISECONDS: Final = re.compile("[0-9]{1,15}")


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until a provider wants to be asked again, from `retry-after-ms`, or `retry-after` as seconds or date.

    Args:
        headers: Of the response, names in lower case.
        now: Seconds since the epoch, for dates.

    Returns:
        Seconds, not negative; None where there is no such header, or none that can be understood.
    """
    if milliseconds := headers.get("retry-after-ms"):
        return int(milliseconds) / 1000 if _MILLISECONDS.fullmatch(milliseconds) else None
    text = headers.get("retry-after", "").strip()
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if seconds < float("inf") else None  # also refuses NaN
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError):
        return None
