"""What all readers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from forerun.core import limits
from forerun.core.canonical import JsonValue
from forerun.core.intake import IntakeError
from forerun.core.plan.model import Task


class ArrivalError(IntakeError):
    """What arrived is no plan and no message, or was cut off or changed.

    Attributes:
        reason: `truncated`, `changed`, `syntax`, `unsupported`, `refused`, `unknown_parameters`, `too_large`, a reason
            of `IntakeError`.
    """


class TextReader(Protocol):
    """Reads a plan that arrives as text, in pieces of any size."""

    @property
    def complete(self) -> bool:
        """The end of the plan has arrived."""
        ...

    def feed(self, text: str) -> list[Task]:
        """Takes the next piece and gives the tasks that are complete by it.

        Raises:
            ArrivalError: It is no plan. Every later call raises it again.
        """
        ...

    def finish(self) -> list[Task]:
        """No more will arrive. Gives the last tasks.

        Raises:
            ArrivalError: `truncated`: the end of the plan is missing.
        """
        ...


class MessageReader(Protocol):
    """Reads the calls of one model message, whole or as the events of its stream."""

    @property
    def complete(self) -> bool:
        """The message said that it is complete."""
        ...

    def whole(self, message: JsonValue) -> list[Task]:
        """Takes a whole message and gives its calls.

        Raises:
            ArrivalError: It is no such message, or was cut off.
        """
        ...

    def feed(self, event: JsonValue) -> list[Task]:
        """Takes the next event of a stream and gives the calls that are complete by it.

        Raises:
            ArrivalError: It is no such event, or what had arrived changed. Every later call raises it again.
        """
        ...

    def finish(self) -> None:
        """No more will arrive.

        Raises:
            ArrivalError: `truncated`: the message is not complete.
        """
        ...


class Guard:
    """Remembers the first error, and bounds what arrives."""

    def __init__(self) -> None:
        self._failed: ArrivalError | None = None
        self._chars = 0

    def arrive(self, chars: int) -> None:
        """So much more has arrived.

        Raises:
            ArrivalError: `too_large`: together it is too much.
        """
        self._chars += chars
        if self._chars > limits.PLAN_TEXT_BYTES:
            raise ArrivalError("too_large", f"more text than PLAN_TEXT_BYTES ({limits.PLAN_TEXT_BYTES})")

    def taking(self, read: Callable[[], list[Task]]) -> list[Task]:
        """Reads, unless something failed before. What fails now fails for ever."""
        if self._failed is not None:
            raise self._failed
        try:
            return read()
        except ArrivalError as error:
            self._failed = error
            raise
        except IntakeError as error:
            self._failed = ArrivalError(error.reason, str(error), piece=error.piece, fields=error.fields)
            raise self._failed from error
