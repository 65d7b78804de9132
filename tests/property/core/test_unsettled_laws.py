"""The index of unsettled resources against the plain list of what was registered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core import limits
from forerun.core.freshness import dependencies
from forerun.core.resources import ROOT, conflicts
from forerun.core.unsettled import Unsettled

keys = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=4).map("/".join) | st.just(ROOT)
key_sets = st.lists(keys, max_size=3)
times = st.floats(min_value=0.0, max_value=3 * limits.UNSETTLED_SECONDS)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(times, key_sets), max_size=8), key_sets, times)
def test_a_read_is_distrusted_exactly_while_a_conflicting_write_may_happen(
    registered: list[tuple[float, list[str]]], reads: list[str], wait: float
) -> None:
    registered = sorted(registered, key=lambda one: one[0])
    index = Unsettled()
    for at, writes in registered:
        index = Unsettled.decode(index.adding(writes, at).encode(), at)
    now = (registered[-1][0] if registered else 0.0) + wait
    expected = any(at + limits.UNSETTLED_SECONDS > now and conflicts(reads, writes) for at, writes in registered)
    assert bool(index.marks(now) & set(dependencies(reads))) is expected
