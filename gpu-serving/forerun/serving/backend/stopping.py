"""When an answer ends, and which of its text is certain."""

from __future__ import annotations

from forerun.serving.backend.deciding import Options


class Stopping:
    """The end of one answer.

    Args:
        options: Of its request.
        ends: The model's own end tokens.
        most: Tokens that the profile allows.
    """

    def __init__(self, options: Options, ends: frozenset[int], most: int) -> None:
        self._ends = frozenset(options.stop_tokens) | (frozenset() if options.ignore_end else ends)
        self.left = most if options.max_tokens is None else min(most, options.max_tokens)

    def take(self, token: int) -> tuple[str, str | None]:
        """Takes a token; its certain text, and why the answer ends, where it does."""
        self.left -= 1
        if token in self._ends:
            return "", "stop"
        return "", "length" if self.left <= 0 else None

    def rest(self, finish: str) -> str:
        """Text that was held back, at the end."""
        return ""
