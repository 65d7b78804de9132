"""Where a caller's requests go: one place that has its history, as long as that has no more than its share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forerun.core.replica_order import replica_order

IDLE = {"a": 0, "b": 0, "c": 0}
COUNTS = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 50), min_size=1, max_size=6)


def test_a_caller_keeps_its_replica_and_callers_are_spread() -> None:
    first = Counter(replica_order(IDLE, f"tenant-{number}")[0] for number in range(300))
    assert set(first) == set(IDLE) and min(first.values()) > 60
    key = "tenant-1"
    assert all(replica_order(dict(reversed(IDLE.items())), key) == replica_order(IDLE, key) for _ in range(3))


def test_where_a_replica_goes_only_its_own_callers_move() -> None:
    left = {"a": 0, "b": 0}
    for number in range(100):
        key = f"tenant-{number}"
        assert [one for one in replica_order(IDLE, key) if one != "c"] == replica_order(left, key)


def test_one_callers_many_requests_do_not_all_wait_at_one_replica() -> None:
    busy = dict(IDLE)
    for _ in range(30):
        busy[replica_order(busy, "tenant-1")[0]] += 1
    assert max(busy.values()) <= 13 and min(busy.values()) >= 4, busy
    assert busy[replica_order(IDLE, "tenant-1")[0]] == max(busy.values()), "where its history is, there is most"


@given(busy=COUNTS, key=st.text())
def test_every_replica_is_there_once_and_the_first_has_room_for_it(busy: dict[str, int], key: str) -> None:
    order = replica_order(busy, key)
    assert sorted(order) == sorted(busy)
    assert busy[order[0]] <= 1.25 * (sum(busy.values()) + 1) / len(busy)
