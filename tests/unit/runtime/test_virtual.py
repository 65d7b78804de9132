import asyncio
import threading
import time

import pytest

from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import DeadlockError, run_virtual


def test_waiting_costs_no_time_and_clocks_agree() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> tuple[float, float]:
        await asyncio.sleep(86_400 * 30)
        return clock.now(), clock.monotonic()

    started = time.perf_counter()
    now, monotonic = run_virtual(main, epoch=1_000.0, seed=1)
    assert time.perf_counter() - started < 5
    assert now == 1_000.0 + 86_400 * 30
    assert monotonic == 86_400 * 30


def test_timers_fire_in_the_order_of_their_time() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> list[tuple[int, float]]:
        fired: list[tuple[int, float]] = []

        async def sleeper(number: int, delay: float) -> None:
            await asyncio.sleep(delay)
            fired.append((number, clock.monotonic()))

        async with asyncio.TaskGroup() as group:
            for number, delay in enumerate([3.0, 0.001, 1.0, 0.0, 2.5]):
                group.create_task(sleeper(number, delay))
        return fired

    assert run_virtual(main) == [(3, 0.0), (1, 0.001), (2, 1.0), (4, 2.5), (0, 3.0)]


def test_timeouts_and_task_groups_work() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(3600)
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(1000))
                group.create_task(asyncio.wait_for(asyncio.Event().wait(), 2))
        return clock.monotonic()

    assert run_virtual(main) == 7.0


def test_time_stands_still_while_an_executor_works() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> tuple[float, str]:
        release = threading.Event()
        loop = asyncio.get_running_loop()
        soon = loop.call_later(60, release.set)
        job = loop.run_in_executor(None, release.wait, 0.05)
        assert await job is False, "the timer must not fire while the job runs"
        soon.cancel()
        return clock.monotonic(), await asyncio.to_thread(lambda: "done")

    assert run_virtual(main) == (0.0, "done")


def test_a_failing_executor_job_lets_time_go_on() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> float:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        await asyncio.sleep(9)
        return clock.monotonic()

    assert run_virtual(main) == 9.0


def test_a_deadlock_is_told_with_the_tasks_that_wait() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    async def main(clock: LoopClock, ids: SeededIds) -> None:
        task = asyncio.create_task(stuck(), name="the-stuck-one")
        await asyncio.sleep(1)
        await task

    with pytest.raises(DeadlockError, match=r"the-stuck-one at .*test_virtual.py") as raised:
        run_virtual(main)
    assert len(raised.value.tasks) == 2


def test_a_run_repeats_exactly() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> list[str]:
        log: list[str] = []

        async def worker(name: int) -> None:
            for _ in range(20):
                await asyncio.sleep(ids.fraction())
                log.append(f"{name} {clock.now():.9f} {ids.uuid7()}")

        async with asyncio.TaskGroup() as group:
            for name in range(10):
                group.create_task(worker(name))
        return log

    assert run_virtual(main, seed=3) == run_virtual(main, seed=3)
    assert run_virtual(main, seed=3) != run_virtual(main, seed=4)


def test_many_timers_are_fast() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> float:
        await asyncio.gather(*(asyncio.sleep(n / 7) for n in range(20_000)))
        return clock.monotonic()

    started = time.perf_counter()
    assert run_virtual(main) == pytest.approx(19_999 / 7)
    assert time.perf_counter() - started < 10
