"""The order of the calls of one message (cases A5, A15, A19)."""

from __future__ import annotations

import pytest

from forerun.core import limits
from forerun.core.order import BatchCall, BatchOrder, Plan


def write(key: str, same: str | None = None) -> BatchCall:
    return BatchCall(writes=(key,), same=same)


def read(key: str, same: str | None = None) -> BatchCall:
    return BatchCall(reads=(key,), same=same)


BARRIER = BatchCall(writes=("*",), barrier=True)


def waves(order: BatchOrder) -> list[list[int]]:
    """Ends all running calls together, again and again."""
    found: list[list[int]] = []
    while not order.done:
        wave = order.ready()
        assert wave, "nothing runs and nothing is done"
        found.append(wave)
        for index in wave:
            order.finished(index)
    return found


def test_identical_idempotent_writes_run_once_until_another_write_comes_between() -> None:
    a, b = write("f", "write f a"), write("f", "write f b")
    order = BatchOrder([a, a, b, a])
    assert [order.same_as(index) for index in range(4)] == [None, 0, None, None]
    assert waves(order) == [[0], [2], [3]]


def test_writes_that_may_not_be_repeated_all_run_in_order() -> None:
    assert waves(BatchOrder([write("f")] * 3)) == [[0], [1], [2]]


def test_identical_reads_share_until_a_write_comes_between() -> None:
    order = BatchOrder([read("f", "r"), read("f", "r"), write("g"), read("f", "r"), write("f"), read("f", "r")])
    assert [order.same_as(index) for index in range(6)] == [None, 0, None, 0, None, None]


def test_identical_writes_do_not_share_an_outcome_across_a_read_of_what_they_write() -> None:
    """If the first one is taken back, the second one runs for both: the read between them must not see it."""
    order = BatchOrder([write("x", "x=1"), read("x"), write("x", "x=1"), read("y"), write("x", "x=1")])
    assert [order.same_as(index) for index in range(5)] == [None, None, None, None, 2]
    assert order.ready() == [0, 3]


def test_a_barrier_re_opens_the_window_for_reads_but_not_for_pure_calls() -> None:
    pure = BatchCall(same="1+1")
    order = BatchOrder([read("f", "r"), pure, BARRIER, read("f", "r"), pure])
    assert [order.same_as(index) for index in range(5)] == [None, None, None, None, 1]


def test_reads_and_writes_of_one_batch() -> None:
    order = BatchOrder(
        [write("files/n.txt"), read("files/n.txt"), write("files/n.txt"), write("files/n.txt"), read("files/other.txt")]
    )
    assert waves(order) == [[0, 4], [1], [2], [3]]


def test_reads_run_together_and_a_write_waits_for_the_reads_before_it() -> None:
    order = BatchOrder([read("a"), read("a/b"), write("a/b"), read("a"), read("z")])
    assert order.ready() == [0, 1, 4]
    order.finished(0)
    assert order.ready() == []
    order.finished(1)
    assert order.ready() == [2]
    order.finished(2)
    assert order.ready() == [3]


def test_a_barrier_runs_alone() -> None:
    assert waves(BatchOrder([read("a"), BatchCall(), BARRIER, BatchCall(), read("b"), BARRIER, BARRIER])) == [
        [0, 1],
        [2],
        [3, 4],
        [5],
        [6],
    ]


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (write("a"), write("a/b"), True),
        (write("a/b"), write("a"), True),
        (write("a/b"), write("a/c"), False),
        (read("a"), write("a/b/c"), True),
        (write("a/b/c"), read("a"), True),
        (write("*"), read("a"), True),
        (read("a"), write("*"), True),
        (read("a"), read("*"), False),
        (write("a"), BatchCall(), False),
    ],
)
def test_conflicting_calls_keep_their_order(first: BatchCall, second: BatchCall, waits: bool) -> None:
    plan = Plan([first])
    assert plan.place(second).predecessors == (frozenset({0}) if waits else frozenset())
    assert len(plan) == 2


def test_never_more_than_the_cap_in_flight_and_all_are_answered() -> None:
    order = BatchOrder([read(f"files/{number}") for number in range(800)])
    running: list[int] = []
    ended = 0
    while not order.done:
        running.extend(order.ready())
        assert len(running) <= limits.CALLS_IN_FLIGHT_PER_MESSAGE
        order.finished(running.pop(0))
        ended += 1
    assert ended == 800


def test_the_cap_can_be_chosen() -> None:
    order = BatchOrder([BatchCall()] * 3, limit=1)
    assert waves(order) == [[0], [1], [2]]
    with pytest.raises(ValueError, match="at least 1"):
        BatchOrder([], limit=0)


def test_calls_that_arrive_while_the_message_streams() -> None:
    order = BatchOrder()
    assert order.done
    first, second = order.add(read("a")), order.add(write("b"))
    safe = {first}
    assert order.ready(only=safe.__contains__) == [first]
    assert order.ready(only=safe.__contains__) == []
    third = order.add(read("b"))
    assert order.ready(only={third}.__contains__) == []  # it comes after a write that may not start yet
    assert order.ready() == [second]
    order.finished(second)
    assert order.ready() == [third]
    order.add(read("z", "x"))
    assert order.same_as(order.add(read("z", "x"))) == 3
    assert len(order) == 5


def test_a_call_that_is_cancelled_before_it_starts_frees_the_ones_behind_it() -> None:
    order = BatchOrder([write("a"), write("a"), write("a")], limit=1)
    assert order.ready() == [0]
    order.finished(1)
    order.finished(1)  # reported twice
    order.finished(0)
    assert order.ready() == [2]
    order.finished(2)
    assert order.done


def test_a_runnable_call_that_is_cancelled_is_not_handed_out() -> None:
    order = BatchOrder([BatchCall(), BatchCall()], limit=1)
    assert order.ready() == [0]
    order.finished(1)
    order.finished(0)
    assert order.ready() == []
    assert order.done


def test_who_waits_for_a_call_that_is_taken_back_waits_for_what_it_had_waited_for() -> None:
    order = BatchOrder([BARRIER, BARRIER, write("a"), BARRIER])
    assert order.ready() == [0]
    order.finished(1)
    order.finished(1)
    assert order.ready() == []
    order.finished(0)
    assert order.ready() == [2]
    order.finished(2)
    assert order.ready() == [3]
    assert not order.done
    order.finished(3)
    assert order.done


def test_a_whole_tail_that_is_taken_back_is_done_with_what_runs() -> None:
    order = BatchOrder([write("a"), write("a"), write("a")])
    assert order.ready() == [0]
    order.finished(2)
    order.finished(1)
    order.finished(0)
    assert order.done
    assert order.ready() == []


def test_a_call_waits_for_what_it_needs_beside_its_conflicts() -> None:
    order = BatchOrder([read("f"), read("g")])
    order.add(read("h"), after=[0])
    order.add(write("g"), after=[2])
    assert order.ready() == [0, 1]
    order.finished(0)
    assert order.ready() == [2]
    order.finished(1)
    assert order.ready() == []
    order.finished(2)
    assert order.ready() == [3]


def test_many_readers_and_many_writers_below_meet_in_one_join() -> None:
    plan = Plan(read("d") for _ in range(1_000))
    placements = [plan.place(write(f"d/{number}")) for number in range(1_000)]
    assert [len(one.joins) for one in placements] == [1] + [0] * 999
    assert all(one.predecessors == placements[0].predecessors for one in placements)
    order = BatchOrder([*[read("d")] * 1_000, *[write(f"d/{number}") for number in range(1_000)]], limit=2_000)
    readers = order.ready()
    assert readers == list(range(1_000))
    for index in readers[:-1]:
        order.finished(index)
    assert order.ready() == []
    order.finished(readers[-1])
    writers = order.ready()
    assert len(writers) == 1_000 and not order.done
    for index in writers:
        order.finished(index)
    assert order.done
