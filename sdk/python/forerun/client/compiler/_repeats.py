"""Which call of a later plan asks again for a write that is finished.

A planner sees earlier results and is told not to repeat calls. Models do it all the same. A read may be repeated: the
platform answers it from its memory as far as it is fresh, and a plan may want to look again. A write may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.client._exact import JsonValue, NotExact, spelled
from forerun.client._plan import TaskResult, TaskStatus
from forerun.client._references import ReferenceProblem, resolve, targets, value_of

# Ends after which a write is done, or may be.
_DONE: Final = frozenset({TaskStatus.OK, TaskStatus.OUTCOME_UNKNOWN})
# Ends after which it certainly did nothing.
_NOTHING: Final = frozenset({TaskStatus.REJECTED, TaskStatus.SKIPPED, TaskStatus.UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class _Write:
    id: str
    tool: str
    arguments: JsonValue


class FinishedWrites:
    """Remembers the writes of a run.

    Args:
        reads: Whether a tool only reads.
    """

    def __init__(self, reads: Callable[[str], bool]) -> None:
        self._reads = reads
        self._earlier: list[_Write] = []
        self._now: list[_Write] = []
        self._results: Mapping[str, TaskResult] = {}

    def planned(self, task: str, tool: str, arguments: JsonValue) -> str | None:
        """Takes a task; the earlier one whose result it gets, or None where it runs.

        Equal means: the same tool and the same arguments after references are resolved, and no other call of that tool
        in between, which would make a repetition meaningful again.

        Args:
            task: Its id.
            tool: Its tool.
            arguments: With references to tasks that run, not to those that were kept.
        """
        if self._reads(tool):
            return None
        one = _Write(task, tool, arguments)
        same = self._same(one)
        if same is None:
            self._now.append(one)
        return same

    def round_over(self, results: Mapping[str, TaskResult]) -> None:
        """A round has ended; all results so far, by task."""
        self._results = dict(results)
        self._earlier += [one for one in self._now if self._status(one) not in _NOTHING]
        self._now = []

    def _same(self, one: _Write) -> str | None:
        if any(other.tool == one.tool for other in self._now):
            return None
        last = next((other for other in reversed(self._earlier) if other.tool == one.tool), None)
        if last is None or self._status(last) not in _DONE:
            return None
        text = self._text(one)
        return last.id if text is not None and text == self._text(last) else None

    def _status(self, one: _Write) -> TaskStatus | None:
        result = self._results.get(one.id)
        return None if result is None else result.status

    def _text(self, one: _Write) -> bytes | None:
        """The call as it ran or would run; None where that is not known yet."""
        try:
            if any(target not in self._results for target in targets(one.arguments)):
                return None
            return spelled(resolve(one.arguments, self._value))
        except (ReferenceProblem, NotExact):
            return None

    def _value(self, task: str) -> JsonValue:
        result = self._results[task]
        if result.status is not TaskStatus.OK:
            raise ReferenceProblem("no_such_value", f"task {task} has no result")
        return value_of(result.content, result.media_type)
