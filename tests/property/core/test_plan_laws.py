"""Plans: every run is as if the tasks had run one after another, whatever fails, is cancelled, or arrives late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.canonical import JsonValue
from forerun.core.contracts import repeatable
from forerun.core.plan import (
    Cause,
    Early,
    FailurePolicy,
    PlanJournal,
    PlanOptions,
    PlanStatus,
    Task,
    TaskStatus,
)
from tests.property.core.plan_world import Run, World, contract_of, one_after_another

fast = settings(max_examples=100, deadline=None)
KEYS = st.sampled_from(["a", "a/x", "a/y", "b", "./a/x", "a/../b"])
STOPPED = Cause("cut_off", "the message was cut off")


def values(earlier: list[str]) -> st.SearchStrategy[JsonValue]:
    """Plain values, and references to earlier tasks: whole, inside a text, and into the result."""
    plain: st.SearchStrategy[JsonValue] = st.sampled_from(["a", "b/c", 1, None])
    if not earlier:
        return plain
    forms = st.sampled_from(["${}", "got ${{{}}}!", "${}.v"])
    return plain | st.builds(str.format, forms, st.sampled_from(earlier))


@st.composite
def plans(draw: st.DrawFn, *, failing: bool = True, most: int = 14) -> list[Task]:
    """Tasks whose keys and values come from results of earlier ones now and then."""
    tasks: list[Task] = []
    for number in range(1, draw(st.integers(1, most)) + 1):
        if tasks and draw(st.integers(0, 4)) == 0:
            tasks.append(replace(tasks[-1], id=str(number)))
            continue
        tool = draw(
            st.sampled_from(["pick", "read", "read", "take", "append", "append", "put", "put", "copy", "opaque"])
        )
        earlier = [task.id for task in tasks]
        picked = [task.id for task in tasks if task.tool == "pick"]

        key = f"${draw(st.sampled_from(picked))}.k" if picked and draw(st.integers(0, 3)) == 0 else draw(KEYS)
        arguments: dict[str, JsonValue] = {"k": key}
        if tool in {"pick", "append", "put"}:
            arguments["v"] = draw(values(earlier))
        if tool == "copy":
            arguments["source"] = draw(KEYS)
        if failing and draw(st.integers(0, 7)) == 0:
            arguments["fails"] = draw(st.sampled_from(["error", "unavailable"]))
        after = tuple(draw(st.lists(st.sampled_from(earlier), max_size=1))) if earlier else ()
        tasks.append(Task(id=str(number), tool=tool, arguments=arguments, after=after))
    return tasks


runs = st.builds(
    Run,
    seconds=st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0]),
    effect_at=st.sampled_from([0.0, 0.5, 1.0]),
    stops=st.sampled_from([True, True, False]),
)


@st.composite
def worlds(draw: st.DrawFn, tasks: list[Task], options: PlanOptions | None = None) -> World:
    """A world in which the tasks arrive in pieces, while others run already."""
    chosen = replace(options or PlanOptions(), in_flight=draw(st.integers(1, 4)))
    world = World({task.id: draw(runs) for task in tasks}, chosen)
    time, rest = 0.0, tasks
    while rest:
        size = draw(st.integers(1, len(rest)))
        world.add_at(time, rest[:size])
        rest = rest[size:]
        time += draw(st.sampled_from([0.0, 0.5, 4.0]))
    world.at(time, lambda: world.machine.complete(world.now))
    return world


def judge(world: World) -> None:
    """The law: observations and final state are those of the sequential run."""
    state, ends = one_after_another(world)
    assert {one: (result.status, result.content) for one, result in world.settled.items()} == ends
    assert world.state.lists == state.lists
    end = world.finished[-1]
    assert [task.id for task in world.added[: len(end.results)]] == [result.id for result in end.results]
    for task in world.added[len(end.results) :]:  # told when the plan had failed already
        assert (end.status, world.settled[task.id].status) == (PlanStatus.FAILED, TaskStatus.SKIPPED)
    assert len(world.started) == len(set(world.started))
    for task in world.added:
        if task.id in world.applied and world.settled[task.id].status in {TaskStatus.CANCELLED, TaskStatus.TIMEOUT}:
            assert repeatable(contract_of(task.tool)), "it had its effect, and is said to have had none"
    last = world.progress[-1]
    assert (last.known, last.running, last.settled, last.complete) == (len(world.added), 0, len(world.added), True)


@fast
@given(st.data(), plans())
def test_every_run_is_as_if_one_after_another(data: st.DataObject, tasks: list[Task]) -> None:
    world = data.draw(worlds(tasks))
    world.run()
    judge(world)
    assert [one.status for one in world.finished] == [PlanStatus.OK]
    assert world.added == tasks


@fast
@given(st.data(), plans(), st.sampled_from(list(FailurePolicy)))
def test_cancellations_timeouts_and_failures_keep_the_order(
    data: st.DataObject, tasks: list[Task], policy: FailurePolicy
) -> None:
    late = [
        Task(id=one.id, tool=one.tool, arguments=one.arguments, after=one.after, timeout_seconds=2.5) for one in tasks
    ]
    world = data.draw(worlds(late, PlanOptions(failure=policy)))
    for _ in range(data.draw(st.integers(0, 4))):
        victim = data.draw(st.sampled_from(tasks)).id
        time = data.draw(st.sampled_from([0.0, 0.5, 1.5, 3.0, 6.0]))
        world.at(time, lambda victim=victim: world.machine.cancel_task(victim, world.now))  # type: ignore[misc]
    world.run()
    judge(world)
    failed = any(one.status.fails for one in world.settled.values())
    assert (world.finished[-1].status is PlanStatus.FAILED) == (failed and policy is not FailurePolicy.ISOLATE)


@settings(max_examples=300, deadline=None)
@given(
    st.data(),
    plans(),
    st.builds(PlanOptions, failure=st.sampled_from(list(FailurePolicy)), early=st.sampled_from(list(Early))),
)
def test_whatever_comes_together_the_order_is_kept(
    data: st.DataObject, tasks: list[Task], options: PlanOptions
) -> None:
    """Tasks with time-outs and failure policies of their own, some taken back, and perhaps the whole plan."""
    own = st.sampled_from([None, None, *FailurePolicy])
    limit = st.sampled_from([None, None, 0.5, 2.5])
    tasks = [replace(one, on_failure=data.draw(own), timeout_seconds=data.draw(limit)) for one in tasks]
    world = data.draw(worlds(tasks, options))
    for _ in range(data.draw(st.integers(0, 3))):
        victim, time = data.draw(st.sampled_from(tasks)).id, data.draw(st.sampled_from([0.0, 0.5, 1.5, 3.0, 6.0]))
        world.at(time, lambda victim=victim: world.machine.cancel_task(victim, world.now))  # type: ignore[misc]
    end = data.draw(st.sampled_from(["completed", "completed", "completed", "cancelled", "refused"]))
    if end != "completed":
        world.at(
            data.draw(st.sampled_from([0.5, 2.0, 5.0])),
            lambda: world.machine.cancel(world.now) if end == "cancelled" else world.machine.refuse(STOPPED, world.now),
        )
    world.run()
    judge(world)
    policies = {one.id: one.on_failure or options.failure for one in world.added}
    failed = {policies[one.id] for one in world.settled.values() if one.status.fails} - {FailurePolicy.ISOLATE}
    (finished,) = world.finished
    if end == "completed":
        assert finished.status is (PlanStatus.FAILED if failed else PlanStatus.OK)
    elif finished.status is PlanStatus.OK:
        assert not failed, "it had ended before it was stopped"


@fast
@given(st.data(), plans(), st.sampled_from(list(Early)), st.booleans())
def test_a_plan_that_is_stopped_starts_nothing_more(
    data: st.DataObject, tasks: list[Task], early: Early, cancel: bool
) -> None:
    world = data.draw(worlds(tasks, PlanOptions(early=early)))

    def stop() -> list[object]:
        machine, now = world.machine, world.now
        world.take(machine.cancel(now) if cancel else machine.refuse(STOPPED, now))
        before = len(world.started)
        world.at(now + 100.0, lambda: () if len(world.started) == before else pytest.fail("started after the stop"))
        return []

    world.at(data.draw(st.sampled_from([0.5, 2.0, 5.0])), stop)  # type: ignore[arg-type]
    world.run()
    judge(world)
    if early is Early.READS and world.finished[-1].status in {PlanStatus.REFUSED, PlanStatus.CANCELLED}:
        cut_off = len(world.added) < len(tasks)
        assert not cut_off or all(result.content == b"" for result in world.finished[-1].results)


@fast
@given(st.data(), plans())
def test_reads_of_a_message_start_early_and_writes_when_it_is_complete(data: st.DataObject, tasks: list[Task]) -> None:
    world = data.draw(worlds(tasks, PlanOptions(early=Early.READS)))
    arrived: list[float] = []
    complete = world.machine.complete

    def watched(now: float) -> object:
        tools = {task.id: task.tool for task in world.added}
        assert {tools[one] for one in world.started} <= {"pick", "read"}
        assert not world.settled
        arrived.append(now)
        return complete(now)

    world.machine.complete = watched  # type: ignore[method-assign,assignment]
    world.run()
    judge(world)
    assert len(arrived) == 1


@fast
@given(st.data(), plans())
def test_a_plan_goes_on_after_a_crash_and_repeats_nothing_that_has_an_end(
    data: st.DataObject, tasks: list[Task]
) -> None:
    world = data.draw(worlds(tasks))
    world.run(events=data.draw(st.integers(1, 40)))
    journal = PlanJournal(
        rounds=(tuple(world.added),),
        settled=dict(world.settled),
        started=frozenset(world.started),
        complete=len(world.added) == len(tasks),
    )
    again, had_ended = world.started, set(world.settled)
    world.started = []
    world.forget()
    world.take(world.machine.restore(journal, world.now))
    if not journal.complete:
        world.add_at(world.now + 1.0, tasks[len(world.added) :])
        world.at(world.now + 1.0, lambda: world.machine.complete(world.now))
    world.run()
    assert not had_ended & set(world.started)
    tools = {task.id: task.tool for task in tasks}
    for one in set(again) & set(world.started):
        assert tools[one] in {"pick", "read", "put"}, "started twice, and may not be repeated"
    judge(world)


@fast
@given(st.data(), plans(most=8), plans(most=8, failing=False))
def test_a_continued_plan_is_as_if_all_rounds_were_one(
    data: st.DataObject, tasks: list[Task], more: list[Task]
) -> None:
    second = [
        Task(id=f"second-{task.id}", tool="read", arguments={"k": "a", "v": f"${data.draw(st.sampled_from(tasks)).id}"})
        for task in more
    ]
    world = data.draw(worlds(tasks))
    world.runs = {**world.runs, **{task.id: data.draw(runs) for task in second}}
    world.run()
    world.take(world.machine.reopen(world.now))
    world.add_at(world.now, second)
    world.at(world.now, lambda: world.machine.complete(world.now))
    world.run()
    judge(world)
    assert [one.round for one in world.finished] == [0, 1]


def test_statuses_that_count_as_failures_are_those_of_the_way_not_of_the_tool() -> None:
    assert {one for one in TaskStatus if one.fails} == {
        TaskStatus.REJECTED,
        TaskStatus.TIMEOUT,
        TaskStatus.UNAVAILABLE,
        TaskStatus.OUTCOME_UNKNOWN,
    }
