"""The answers of merged calls, as bytes that a workspace keeps."""

from __future__ import annotations

import json
from typing import Final

from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.port import Ended, Result, ToolFault

# 64 of these for each workspace stay far below what a workspace itself may hold.
_LONGEST_BYTES: Final = 1024 * 1024


def packed(result: Result) -> bytes | None:
    """An answer to keep; None where it is too long."""
    if len(result.content) > _LONGEST_BYTES:
        return None
    head = json.dumps([result.media_type, result.tool_error, result.cpu_seconds, result.capped])
    return head.encode() + b"\n" + result.content


def unpacked(outcome: bytes | None) -> Result:
    """The answer of a call that was merged before.

    Raises:
        ToolFault: It was not kept.
    """
    if outcome is None:
        raise ToolFault(
            Ended.OUTCOME_UNKNOWN, ErrorReason.CALL_INTERRUPTED,
            "the call took effect, but its result was lost with the stream that should have carried it",
        )  # fmt: skip
    head, _, content = outcome.partition(b"\n")
    media_type, tool_error, cpu_seconds, capped = json.loads(head)
    return Result(content, media_type, tool_error=tool_error, cpu_seconds=cpu_seconds, capped=capped)
