"""The results that later tasks refer to, as values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue
from forerun.core.errors import CoreError
from forerun.core.plan.model import TaskResult
from forerun.core.plan.references import value_of


class Values:
    """Holds contents up to a bound, and parses each about once: tasks that refer to one tend to start together."""

    def __init__(self, bound_bytes: int, result_of: Callable[[str], TaskResult]) -> None:
        self._bound_bytes = bound_bytes
        self._held_bytes = 0
        self._result_of = result_of
        self._parsed: OrderedDict[str, tuple[int, JsonValue]] = OrderedDict()  # with the bytes of the content
        self._parsed_bytes = 0

    def hold(self, result: TaskResult) -> TaskResult:
        """What is kept of a result: all of it, or all but its content."""
        size = 0 if result.shared_with else len(result.content)
        if self._held_bytes + size > self._bound_bytes:
            return replace(result, content=b"", stored_bytes=size)
        self._held_bytes += size
        return result

    def of(self, task: str) -> JsonValue:
        """The value of a result that ended OK.

        Raises:
            CoreError: It is not held, or neither JSON nor text.
        """
        if task in self._parsed:
            self._parsed.move_to_end(task)
            return self._parsed[task][1]
        result = self._result_of(task)
        if result.stored_bytes and not result.content:
            raise CoreError(
                "not_held",
                f"the result of task {task} has {result.stored_bytes} bytes and is only stored; a plan holds"
                f" {self._bound_bytes} bytes of results (PLAN_HELD_BYTES)",
            )
        try:
            value = value_of(result.content, result.media_type)
        except CanonicalError as error:
            raise CoreError(error.reason, f"the result of task {task} cannot be read: {error}") from error
        self._parsed[task] = (len(result.content), value)
        self._parsed_bytes += len(result.content)
        while self._parsed_bytes > limits.RESULT_BYTES and len(self._parsed) > 1:
            _, (size, _) = self._parsed.popitem(last=False)
            self._parsed_bytes -= size
        return value
