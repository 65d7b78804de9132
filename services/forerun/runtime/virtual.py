"""An event loop in which waiting costs nothing.

`VirtualLoop` never sleeps: when nothing is ready it sets its time to the next timer. Hours of timeouts, heartbeats and
leases run in milliseconds, in an order that depends on the program alone. The simulation and many unit tests run on it.

Real sockets and subprocesses do not belong on this loop: their answers arrive in real time, which virtual time would
have left behind. Work given to an executor does belong: virtual time stands still until the executor has answered.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# An arbitrary moment (2026-01-01T00:00:00Z) at which virtual runs begin, so that recorded times look like times.
DEFAULT_EPOCH = 1_767_225_600.0

_REPORTED_TASKS = 50


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer is set and no executor works: the program would wait for ever.

    Attributes:
        tasks: One line for each pending task: its name and where it waits.
    """

    def __init__(self, tasks: tuple[str, ...]) -> None:
        shown = "\n  ".join(tasks[:_REPORTED_TASKS])
        rest = len(tasks) - _REPORTED_TASKS
        more = f"\n  and {rest} more" if rest > 0 else ""
        super().__init__(f"deadlock under virtual time, {len(tasks)} pending task(s):\n  {shown}{more}")
        self.tasks = tasks


class _JumpingSelector(selectors.DefaultSelector):
    """Asks its loop what to do instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self.loop.executor_jobs > 0:
            waited: list[tuple[selectors.SelectorKey, int]] = super().select(None)
            return waited
        self.loop.jump()
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop with its own time, which starts at 0 and moves only from timer to timer.

    Raises (out of `run_until_complete`):
        DeadlockError: when nothing can ever become ready again.
    """

    def __init__(self) -> None:
        self._virtual_time = 0.0
        self._executor_jobs = 0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    @property
    def executor_jobs(self) -> int:
        """Jobs that somebody awaits and an executor has not answered yet; while there are any, time stands still."""
        return self._executor_jobs

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_time

    def jump(self) -> None:
        """Sets the time to the next timer.

        Raises:
            DeadlockError: there is no timer.
        """
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]  # asyncio's own heap
        if not timers:
            raise DeadlockError(self._pending_tasks())
        self._virtual_time = max(self._virtual_time, timers[0].when())

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], _T], *args: *_Ts) -> asyncio.Future[_T]:
        """Runs `func` in a thread or process for real; virtual time stands still meanwhile."""
        future: asyncio.Future[_T] = super().run_in_executor(executor, func, *args)
        self._executor_jobs += 1
        future.add_done_callback(self._executor_answered)
        return future

    async def shutdown_default_executor(self) -> None:
        """Waits for the default executor's threads to end."""
        # Waits for a thread that is no executor job; without the count this wait would look like a deadlock.
        self._executor_jobs += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._executor_jobs -= 1

    def _executor_answered(self, _: asyncio.Future[Any]) -> None:
        self._executor_jobs -= 1

    def _pending_tasks(self) -> tuple[str, ...]:
        return tuple(sorted(_describe(task) for task in asyncio.all_tasks(self) if not task.done()))


def _describe(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "not started"
    return f"{task.get_name()} at {where}"


def run_virtual(
    main: Callable[[LoopClock, SeededIds], Coroutine[Any, Any, _T]], *, epoch: float = DEFAULT_EPOCH, seed: int = 0
) -> _T:
    """Runs `main(clock, ids)` to its end under virtual time and returns its result.

    Args:
        main: Gets a clock that follows virtual time and a seeded source of ids.
        epoch: Seconds since the Unix epoch when the run begins.
        seed: Decides every id and random draw of the run.

    Raises:
        DeadlockError: `main` waits for something that cannot happen.
    """
    clock = LoopClock(epoch)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(clock, SeededIds(seed, clock)))
