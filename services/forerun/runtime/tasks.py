"""Background tasks that are neither lost nor allowed to fail in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from forerun.runtime import metrics_table as m
from forerun.runtime.errors import Bug, ErrorReason
from forerun.runtime.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

# A cancelled task needs some turns of the loop to end, also where the process has no time left.
_LEAST_SECONDS: Final = 0.1


class Failure:
    """The reason for which a process has to end, if there is one."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._reported = asyncio.Event()

    @property
    def error(self) -> BaseException | None:
        """The first reason."""
        return self._error

    def report(self, error: BaseException) -> None:
        """Says that the process cannot go on."""
        if self._error is None:
            self._error = error
            self._reported.set()

    async def wait(self) -> None:
        """Returns when there is a reason."""
        await self._reported.wait()


class TaskScope:
    """Owns background tasks: none is lost, none fails in silence, all end with the scope. A component.

    Args:
        name: For logs.
        metrics: Where failures are counted.
        failure: Where the failure of a task is reported without which the process is useless.
    """

    def __init__(self, name: str, *, metrics: Metrics, failure: Failure | None = None) -> None:
        self._name = name
        self._metrics = metrics
        self._failure = failure
        self._tasks: dict[asyncio.Task[Any], bool] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """No more tasks are started."""
        return self._closed

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str, critical: bool = False) -> asyncio.Task[Any]:
        """Runs work in the background.

        Args:
            work: An unexpected exception of it is logged and counted.
            name: For logs and debuggers.
            critical: The process ends when it fails.

        Raises:
            Bug: the scope is closed already.
        """
        if self._closed:
            work.close()
            raise Bug(ErrorReason.SHUTTING_DOWN, f"{self._name} is closed and starts no more tasks")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}/{name}")
        self._tasks[task] = critical
        task.add_done_callback(self._ended)
        return task

    def every(self, interval_seconds: float, job: Callable[[], Awaitable[object]], *, name: str) -> asyncio.Task[Any]:
        """Runs a job again and again, `interval_seconds` after it ended; a failure is logged and does not end it."""
        return self.spawn(self._repeat(interval_seconds, job, name), name=name)

    async def start(self) -> None:
        """Nothing to do: tasks are spawned when they are needed."""

    async def stop(self, grace_seconds: float) -> None:
        """Cancels all tasks and waits for them, at most `grace_seconds`, but long enough to see them end."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=max(_LEAST_SECONDS, grace_seconds))
            if hanging:
                _LOG.error(
                    "tasks ignore their cancellation",
                    extra={"fields": {"forerun.component": self._name, "forerun.count": len(hanging)}},
                )

    async def _repeat(self, interval_seconds: float, job: Callable[[], Awaitable[object]], name: str) -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await job()
            except Exception:
                self._count(name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        critical = self._tasks.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        self._count(task.get_name(), error)
        if critical and self._failure is not None:
            self._failure.report(error)

    def _count(self, name: str, error: BaseException | None = None) -> None:
        _LOG.error("background task failed", exc_info=error or True, extra={"fields": {"forerun.component": name}})
        self._metrics.add(m.TASK_FAILURES)
