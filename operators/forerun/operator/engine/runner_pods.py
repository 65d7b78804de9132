"""Which pods of runners have served their session. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

# A runner that fails at its start fails in the next pod as well: it is not replaced faster than somebody can read why.
_FAILED_SECONDS: Final = 30.0


def served(pods: Iterable[dict[str, Any]], now: float) -> list[str]:
    """Names of the pods to delete, so that new ones come in their place.

    A runner ends with its session. The kubelet starts it again in the same pod, where it has no key and serves nobody.

    Args:
        pods: All pods of runners.
        now: Seconds since 1970.
    """
    return [pod["metadata"]["name"] for pod in pods if _is_over(pod, now)]


def _is_over(pod: dict[str, Any], now: float) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    status = pod.get("status", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return True
    codes = [code for one in status.get("containerStatuses", ()) if (code := _exit_code(one)) is not None]
    if not codes:
        return False
    begun_at = status.get("startTime")
    age = now - datetime.fromisoformat(begun_at).timestamp() if begun_at else 0.0
    return 0 in codes or age >= _FAILED_SECONDS


def _exit_code(container: dict[str, Any]) -> int | None:
    """How a container ended, now or before it was started again; None where it has not."""
    for state in ("state", "lastState"):
        ended = container.get(state, {}).get("terminated")
        if ended is not None:
            return int(ended.get("exitCode", 1))
    return 1 if container.get("restartCount", 0) else None
