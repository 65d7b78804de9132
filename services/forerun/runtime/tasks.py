"""Background tasks that are neither lost nor allowed to fail in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final

from forerun.runtime import metrics_table as m
from forerun.runtime.errors import Bug, ErrorReason
from forerun.runtime.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

# A cancelled task needs some turns of the loop to end, also where the process has no time left.
_LEAST_SECONDS: Final = 0.1
# Before work that failed is begun anew; the pause doubles while it fails again within the longest one.
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
# A failure of the same kind is only counted for so long after it was logged.
_SAID_SECONDS: Final = 60.0
_SAID: Final = 256


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
        self._said: dict[tuple[str, type[BaseException]], float] = {}
        self._closed = False

    @property
    def said(self) -> Collection[tuple[str, type[BaseException]]]:
        """What failed and how, as far as it was logged lately."""
        return self._said.keys()

    @property
    def closed(self) -> bool:
        """No more tasks are started."""
        return self._closed

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str, critical: bool = False) -> asyncio.Task[Any]:
        """Runs work in the background that comes to an end by itself; see `keep` for what does not.

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

    def keep(self, work: Callable[[], Coroutine[Any, Any, object]], *, name: str) -> asyncio.Task[Any]:
        """Runs work that has no end of its own; where it fails all the same, it is begun anew after a pause.

        Args:
            work: Makes it. Where it returns, it is over.
            name: For logs and debuggers.
        """
        return self.spawn(self._keep(work, name), name=name)

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
            except Exception as error:
                self._count(name, error)

    async def _keep(self, work: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        loop, pause = asyncio.get_running_loop(), _PAUSE_SECONDS
        while True:
            begun_at = loop.time()
            try:
                await work()
                return
            except Exception as error:
                self._count(name, error)
            if loop.time() - begun_at > _LONGEST_PAUSE_SECONDS:
                pause = _PAUSE_SECONDS
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)

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

    def _count(self, name: str, error: BaseException) -> None:
        self._metrics.add(m.TASK_FAILURES)
        kind, now = (name, type(error)), asyncio.get_running_loop().time()
        if now - self._said.get(kind, float("-inf")) < _SAID_SECONDS:
            return
        if len(self._said) >= _SAID:
            self._said.clear()
        self._said[kind] = now
        _LOG.error("background task failed", exc_info=error, extra={"fields": {"forerun.component": name}})
