"""The life of a process, under virtual time."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from forerun.runtime import metrics_table as m
from forerun.runtime.app import App, Callbacks, Part
from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import Bug, ErrorReason, Unavailable
from forerun.runtime.ids import SeededIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import Failure, TaskScope
from forerun.runtime.virtual import run_virtual


class Recorder:
    """Makes components that write down what happens to them and when."""

    def __init__(self) -> None:
        self.events: list[tuple[str, float]] = []
        self.graces: dict[str, float] = {}

    def note(self, what: str) -> None:
        self.events.append((what, asyncio.get_running_loop().time()))

    def part(
        self,
        name: str,
        *,
        stop_seconds: float | None = 5.0,
        takes: float = 0.0,
        start: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> Part:
        async def begin() -> None:
            self.note(f"start {name}")
            if start is not None:
                await start()

        async def end(grace_seconds: float) -> None:
            self.graces[name] = grace_seconds
            self.note(f"stop {name}")
            await asyncio.sleep(takes)

        return Part(name, Callbacks(start=begin, stop=end), stop_seconds=stop_seconds, start_seconds=3.0)


def live(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run(clock: LoopClock, ids: SeededIds) -> None:
        await main()

    run_virtual(run)


def app(*parts: Part, drain_seconds: float = 0.0) -> App:
    return App(service="test", parts=parts, metrics=Metrics("snapshots"), drain_seconds=drain_seconds)


def test_parts_start_in_order_and_stop_in_reverse() -> None:
    async def main() -> None:
        record = Recorder()
        process = app(record.part("a"), record.part("b"), record.part("c"), drain_seconds=2.0)
        await process.start()
        assert await process.stop(20.0)
        assert record.events == [
            ("start a", 0), ("start b", 0), ("start c", 0), ("stop c", 2), ("stop b", 2), ("stop a", 2),
        ]  # fmt: skip

    live(main)


def test_the_part_without_bound_gets_what_the_others_leave() -> None:
    async def main() -> None:
        record = Recorder()
        process = app(record.part("a", stop_seconds=3.0), record.part("server", stop_seconds=None, takes=1.0))
        await process.start()
        assert await process.stop(20.0)
        assert record.graces == {"server": 17.0, "a": 3.0}

    live(main)


def test_where_time_is_short_no_part_starves_those_behind_it() -> None:
    async def main() -> None:
        record = Recorder()
        parts = (record.part("bus", stop_seconds=4.0), record.part("server", stop_seconds=2.0, takes=100.0))
        process = app(*parts, record.part("streams", stop_seconds=None, takes=3.0))
        await process.start()
        await process.stop(6.0)
        assert record.graces["streams"] == 3.0
        assert record.graces["server"] == 1.0
        assert record.graces["bus"] == 1.5  # what is left after the server was given up, half a second late

    live(main)


def test_a_part_that_hangs_is_given_up_and_the_others_still_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        record = Recorder()
        process = app(record.part("a"), record.part("hangs", takes=1e9), record.part("c"))
        await process.start()
        assert not await process.stop(20.0)
        assert record.events[-1] == ("stop a", 5.5)

    live(main)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "stopping took too long"
    ]


def test_all_hanging_parts_together_stay_near_the_bound() -> None:
    async def main() -> None:
        record = Recorder()
        process = app(*(record.part(name, takes=1e9) for name in "abcd"))
        await process.start()
        assert not await process.stop(8.0)
        assert asyncio.get_running_loop().time() <= 8.0 + 4 * 0.5

    live(main)


def test_a_stop_that_is_cut_short_reaches_every_part() -> None:
    async def main() -> None:
        record = Recorder()
        process = app(record.part("a"), record.part("b"), record.part("slow", stop_seconds=None, takes=100.0))
        await process.start()
        stopping = asyncio.create_task(process.stop(60.0))
        await asyncio.sleep(1.0)
        stopping.cancel()
        assert not await stopping
        assert record.graces == {"slow": 0.0, "a": 0.0, "b": 0.0}
        assert asyncio.get_running_loop().time() <= 3.0

    live(main)


def test_a_failed_start_stops_what_had_started() -> None:
    async def fail() -> None:
        raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, "no broker")

    async def main() -> None:
        record = Recorder()
        with pytest.raises(Unavailable, match="no broker"):
            await app(record.part("a"), record.part("b", start=fail), record.part("c")).start()
        assert [what for what, _ in record.events] == ["start a", "start b", "stop b", "stop a"]

    live(main)


def test_a_start_that_hangs_is_an_error_with_the_parts_name() -> None:
    async def hang() -> None:
        await asyncio.sleep(1e9)

    async def main() -> None:
        with pytest.raises(Bug, match="b did not start within 3 s"):
            record = Recorder()
            await app(record.part("a"), record.part("b", start=hang)).start()

    live(main)


# ---------------------------------------------------------------- background tasks


async def broken() -> None:
    raise ValueError("x")


def test_failures_of_tasks_are_counted_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        metrics, failure = Metrics(None), Failure()
        scope = TaskScope("scope", metrics=metrics, failure=failure)
        scope.spawn(broken(), name="harmless")
        await asyncio.sleep(1)
        assert not isinstance(failure.error, ValueError)
        scope.spawn(broken(), name="vital", critical=True)
        await failure.wait()
        assert isinstance(failure.error, ValueError)
        assert metrics.value(m.TASK_FAILURES) == 2
        await scope.stop(1)

    live(main)
    assert [record.message for record in caplog.records] == ["background task failed"] * 2


def test_repeated_jobs_outlive_their_failures() -> None:
    async def main() -> None:
        metrics, runs = Metrics(None), []
        scope = TaskScope("scope", metrics=metrics)

        async def job() -> None:
            runs.append(asyncio.get_running_loop().time())
            raise ValueError

        scope.every(10.0, job, name="job")
        await asyncio.sleep(35)
        await scope.stop(1)
        assert runs == [10, 20, 30]
        assert metrics.value(m.TASK_FAILURES) == 3

    live(main)


def test_stopping_a_scope_leaves_no_task_and_takes_none() -> None:
    async def main() -> None:
        scope = TaskScope("scope", metrics=Metrics(None))
        task = scope.spawn(asyncio.sleep(1e9), name="sleeper")
        await scope.stop(1)
        assert task.cancelled()
        with pytest.raises(Bug, match="closed"):
            scope.spawn(asyncio.sleep(0), name="late")
        assert len(asyncio.all_tasks()) == 1

    live(main)


def test_a_task_that_ends_in_a_few_turns_of_the_loop_is_not_reported_where_no_time_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def gathers() -> None:
        await asyncio.gather(asyncio.sleep(100), asyncio.sleep(100))

    async def main() -> None:
        scope = TaskScope("scope", metrics=Metrics(None))
        task = scope.spawn(gathers(), name="gathers")
        await asyncio.sleep(0)
        await scope.stop(0.0)
        assert task.cancelled()

    live(main)
    assert not caplog.records


def test_a_task_that_ignores_its_cancellation_does_not_hold_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        scope = TaskScope("scope", metrics=Metrics(None))
        scope.spawn(stubborn(), name="stubborn")
        await asyncio.sleep(0)
        await scope.stop(2.0)
        assert asyncio.get_running_loop().time() == 2.0

    live(main)
    assert caplog.records[-1].message == "tasks ignore their cancellation"
