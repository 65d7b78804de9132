"""Tool calls in a model's text, in the form of the Hermes and Qwen templates: `<tool_call>{...}</tool_call>`."""

from __future__ import annotations

import json
from typing import Final

from forerun.runtime.models.port import ModelEvent, TextDelta, ToolCallDelta

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"


class HermesCalls:
    """Takes text as it streams, and gives text and whole calls. What is no call stays text, unchanged."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self.count = 0

    def feed(self, text: str) -> list[ModelEvent]:
        """More text; what has become certain with it."""
        self._held += text
        found: list[ModelEvent] = []
        while self._step(found):
            pass
        return found

    def end(self) -> list[ModelEvent]:
        """The text has ended; what was held back. A call without its closing tag is one where it is complete."""
        rest, self._held = self._held, ""
        if self._inside:
            self._inside = False
            return [self._call(rest) or TextDelta(f"{_OPEN}{rest}")]
        return [TextDelta(rest)] if rest else []

    def _step(self, found: list[ModelEvent]) -> bool:
        tag = _CLOSE if self._inside else _OPEN
        at = self._held.find(tag)
        if at < 0:
            if not self._inside:
                kept = next((size for size in range(len(tag) - 1, 0, -1) if self._held.endswith(tag[:size])), 0)
                text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
                found += [TextDelta(text)] if text else []
            return False
        before, self._held = self._held[:at], self._held[at + len(tag) :]
        if self._inside:
            found.append(self._call(before) or TextDelta(f"{_OPEN}{before}{_CLOSE}"))
        elif before:
            found.append(TextDelta(before))
        self._inside = not self._inside
        return True

    def _call(self, text: str) -> ToolCallDelta | None:
        try:
            call = json.loads(text)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, KeyError, TypeError):
            return None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        # Ids are the endpoint's own and follow from the place in the message, so that the same text gives the same ids.
        delta = ToolCallDelta(self.count, f"call_{self.count}", name, json.dumps(arguments, ensure_ascii=False))
        self.count += 1
        return delta
