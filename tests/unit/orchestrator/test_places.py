"""What a replica runs at the same time, and what waits."""

from __future__ import annotations

import asyncio

import pytest

from forerun.core import limits
from forerun.orchestrator.places import Places, SessionPlaces
from forerun.runtime.errors import ErrorReason, ResourceExhausted


async def take_in_turn(places: Places, tenant: str, count: int) -> tuple[list[int], list[asyncio.Task[None]]]:
    """Tasks that take places one after the other, and the order in which they got them."""
    got: list[int] = []

    async def one(number: int) -> None:
        await places.take(tenant)
        got.append(number)

    tasks = []
    for number in range(count):
        tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.sleep(0)
    return got, tasks


async def test_calls_of_a_tenant_wait_in_order_and_for_no_other_tenant() -> None:
    places = Places(calls_per_tenant=2)
    got, tasks = await take_in_turn(places, "busy", 5)
    assert got == [0, 1]
    await asyncio.wait_for(places.take("other"), 1.0)
    for expected in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        places.leave("busy")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert got == expected
    await asyncio.gather(*tasks)


async def test_a_call_that_is_taken_back_while_it_waits_leaves_its_place_to_the_next() -> None:
    places = Places(calls_per_tenant=1)
    got, tasks = await take_in_turn(places, "t", 3)
    tasks[1].cancel()
    places.leave("t")  # in the same moment: whichever comes first, the place is not lost
    await asyncio.wait(tasks, timeout=1.0)
    assert got == [0, 2]
    tasks = [asyncio.ensure_future(places.take("t")) for _ in range(2)]
    await asyncio.sleep(0)
    places.leave("t")
    tasks[0].cancel()  # it has been given the place already
    await asyncio.wait(tasks, timeout=1.0)
    assert not tasks[1].cancelled() and tasks[1].done()


def test_beyond_the_queue_a_message_is_refused_at_once_and_told_when_to_ask_again() -> None:
    places = Places(waiting_calls=3, setting="FORERUN_ORCHESTRATOR_MAX_WAITING_CALLS")
    places.admit(3)
    places.unanswered(2)
    with pytest.raises(ResourceExhausted) as error:
        places.admit(2)
    assert error.value.reason is ErrorReason.QUEUE_FULL
    assert error.value.metadata["limit"] == "CALL_QUEUE"
    assert error.value.metadata["setting"] in error.value.message
    assert error.value.retry_after_seconds is not None
    places.admit(1)


def test_speculations_are_bounded_by_policy_while_they_run_and_by_the_replica_while_they_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SPECULATIONS_PER_REPLICA", 2)
    places = Places()
    assert [places.reserve("a", 1), places.reserve("b", 1)] == [True, False]
    places.stopped("a")
    assert places.reserve("b", 1)
    places.stopped("b")
    assert not places.reserve("c", 1)  # the results of two are open
    places.closed("a")
    assert places.reserve("c", 1)


def test_sessions_are_bounded_per_tenant_and_in_all_with_errors_that_name_limit_and_setting() -> None:
    places = SessionPlaces(sessions=3, sessions_per_tenant=2, setting="ALL", tenant_setting="ONE")
    places.take("a")
    places.take("a")
    with pytest.raises(ResourceExhausted) as of_tenant:
        places.take("a")
    places.take("b")
    with pytest.raises(ResourceExhausted) as of_all:
        places.take("c")
    metadata = [error.value.metadata for error in (of_tenant, of_all)]
    assert metadata == [
        {"limit": "SESSIONS_PER_TENANT", "setting": "ONE"},
        {"limit": "SESSIONS_PER_REPLICA", "setting": "ALL"},
    ]
    places.leave("a")
    places.take("c")
    assert (places.open, places.of("a"), places.of("c")) == (3, 1, 1)
