"""Background work without an end goes on after what nobody had foreseen, and says so without filling the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from forerun.runtime import metrics_table as m
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import TaskScope
from forerun.runtime.virtual import run_virtual


def live(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run(clock: LoopClock, ids: SeededIds) -> None:
        await main()

    run_virtual(run)


def test_what_has_no_end_begins_anew_after_pauses_that_grow() -> None:
    async def main() -> None:
        metrics, runs = Metrics(None), []
        scope = TaskScope("scope", metrics=metrics)

        async def work() -> None:
            runs.append(asyncio.get_running_loop().time())
            raise ValueError

        scope.keep(work, name="work")
        await asyncio.sleep(95.0)
        await scope.stop(1)
        assert runs == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0]
        assert metrics.value(m.TASK_FAILURES) == len(runs)

    live(main)


def test_work_that_went_well_for_long_begins_anew_soon() -> None:
    async def main() -> None:
        runs: list[float] = []
        scope = TaskScope("scope", metrics=Metrics(None))

        async def work() -> None:
            runs.append(asyncio.get_running_loop().time())
            if len(runs) > 3:
                await asyncio.sleep(100.0)
            raise ValueError

        scope.keep(work, name="work")
        await asyncio.sleep(109.0)
        await scope.stop(1)
        assert runs == [0.0, 1.0, 3.0, 7.0, 108.0]

    live(main)


def test_work_that_comes_to_its_end_is_not_begun_anew() -> None:
    async def main() -> None:
        runs: list[int] = []
        scope = TaskScope("scope", metrics=Metrics(None))

        async def work() -> None:
            runs.append(1)

        await scope.keep(work, name="work")
        await asyncio.sleep(100.0)
        await scope.stop(1)
        assert runs == [1]

    live(main)


def test_a_cancellation_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        scope = TaskScope("scope", metrics=Metrics(None))
        task = scope.keep(lambda: asyncio.sleep(1e9), name="work")
        await asyncio.sleep(1.0)
        await scope.stop(1)
        assert task.cancelled()

    live(main)
    assert not caplog.records


def test_one_kind_of_failure_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        metrics, runs = Metrics(None), []
        scope = TaskScope("scope", metrics=metrics)

        async def job() -> None:
            runs.append(asyncio.get_running_loop().time())
            raise KeyError if len(runs) == 3 else ValueError

        scope.every(10.0, job, name="job")
        await asyncio.sleep(75.0)
        await scope.stop(1)
        assert metrics.value(m.TASK_FAILURES) == 7

    with caplog.at_level(logging.ERROR):
        live(main)
    said = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert said == [ValueError, KeyError, ValueError]


def test_how_much_is_remembered_of_what_was_said_is_bounded() -> None:
    async def main() -> None:
        scope = TaskScope("scope", metrics=Metrics(None))

        async def broken() -> None:
            raise ValueError

        for number in range(1_000):
            scope.spawn(broken(), name=f"one of many {number}")
            await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert len(scope.said) <= 256
        await scope.stop(1)

    live(main)
