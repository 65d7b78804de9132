"""The order of a batch, against the plain definition of what may run together."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.order import BatchCall, BatchOrder
from forerun.core.resources import ROOT, conflicts

keys = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map("/".join) | st.just(ROOT)
key_sets = st.lists(keys, max_size=2).map(tuple)
calls = st.builds(BatchCall, reads=key_sets, writes=key_sets, barrier=st.sampled_from([False] * 7 + [True]))
batches = st.lists(calls, max_size=12)
fast = settings(max_examples=120, deadline=None)


def must_wait(first: BatchCall, second: BatchCall) -> bool:
    if first.barrier or second.barrier:
        return True
    return conflicts(first.writes, second.reads + second.writes) or conflicts(first.reads, second.writes)


@fast
@given(st.data(), batches, st.integers(min_value=1, max_value=4), st.integers(min_value=1, max_value=8))
def test_every_run_is_as_if_in_call_order(data: st.DataObject, batch: list[BatchCall], limit: int, fan_in: int) -> None:
    order = BatchOrder(batch, limit=limit, fan_in=fan_in)
    started: list[int] = []
    ended: list[int] = []
    while not order.done:
        for index in order.ready():
            earlier = [other for other in range(index) if must_wait(batch[other], batch[index])]
            assert set(earlier) <= set(ended), f"{index} started before {earlier} ended"
            started.append(index)
        running = [index for index in started if index not in ended]
        assert 0 < len(running) <= limit
        ending = data.draw(st.sampled_from(running))
        order.finished(ending)
        ended.append(ending)
    assert sorted(ended) == list(range(len(batch)))


@fast
@given(batches, st.integers(min_value=1, max_value=8))
def test_nothing_waits_without_a_reason(batch: list[BatchCall], fan_in: int) -> None:
    order = BatchOrder(batch, limit=100, fan_in=fan_in)
    first = set(order.ready())
    for index, call in enumerate(batch):
        if not any(must_wait(earlier, call) for earlier in batch[:index]):
            assert index in first


@fast
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["f", "g", "f/h"])), max_size=10))
def test_sharing_outcomes_of_idempotent_writes_leaves_the_same_final_state(batch: list[tuple[str, str]]) -> None:
    def final(shared: bool) -> dict[str, str]:
        order = BatchOrder(
            [BatchCall(writes=(key,), same=(value, key) if shared else None) for value, key in batch], limit=1
        )
        state: dict[str, str] = {}
        while not order.done:
            for index in order.ready():
                value, key = batch[index]
                # Writing a key replaces everything at it and below it.
                state = {k: v for k, v in state.items() if not k.startswith(key + "/")}
                state[key] = value
                order.finished(index)
        return state

    assert final(shared=True) == final(shared=False)


@fast
@given(st.lists(st.sampled_from(["read f", "read g", "write f", "write g", "barrier"]), max_size=12))
def test_a_shared_read_sees_what_its_own_execution_would_have_seen(batch: list[str]) -> None:
    def call(text: str) -> BatchCall:
        if text == "barrier":
            return BatchCall(writes=(ROOT,), barrier=True)
        verb, key = text.split()
        return BatchCall(reads=(key,), same=text) if verb == "read" else BatchCall(writes=(key,))

    def version(index: int) -> int:
        key = batch[index].split()[1]
        return sum(text in {f"write {key}", "barrier"} for text in batch[:index])

    order = BatchOrder([call(text) for text in batch])
    for index, text in enumerate(batch):
        shared = order.same_as(index)
        if shared is not None:
            assert text.startswith("read")
            assert batch[shared] == text
            assert version(shared) == version(index)
        elif text.startswith("read"):
            assert not any(batch[other] == text and version(other) == version(index) for other in range(index))
