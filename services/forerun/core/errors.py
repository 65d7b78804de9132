"""The one root of errors that pure code raises.

A caller at a border (a gRPC servicer, the CLI) maps `reason` to its own typed error; the text is for people.
"""

from __future__ import annotations


class CoreError(ValueError):
    """Something that was asked of the core is not valid.

    Attributes:
        reason: A short, stable word in snake case that code may compare.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
