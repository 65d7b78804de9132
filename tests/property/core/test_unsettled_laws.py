"""The index of unsettled resources against the plain list of what was registered and taken off."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core import limits
from forerun.core.freshness import dependencies
from forerun.core.resources import ROOT, conflicts
from forerun.core.unsettled import OwnWrites, Unsettled

AFTER = limits.UNSETTLED_SECONDS + limits.CLOCK_SKEW_SECONDS

keys = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=4).map("/".join) | st.just(ROOT)
key_sets = st.lists(keys, max_size=3)
seconds = st.floats(min_value=0.0, max_value=2 * limits.UNSETTLED_SECONDS)
ends = st.none() | st.tuples(seconds, st.booleans())
"""How long a write really takes, and whether it may be late then; None: nobody ever hears of it."""
writes = st.lists(st.tuples(st.sampled_from(["one", "two"]), seconds, key_sets, seconds, ends), max_size=6)


@settings(max_examples=200, deadline=None)
@given(writes, key_sets, seconds)
def test_a_read_is_distrusted_exactly_while_a_conflicting_write_may_happen(
    writes: list[tuple[str, float, list[str], float, tuple[float, bool] | None]], reads: list[str], wait: float
) -> None:
    replicas = {"one": OwnWrites(), "two": OwnWrites()}
    index, expected, now = Unsettled(), list[tuple[list[str], float]](), 0.0
    steps = [(at, number, False) for number, (_, at, *_) in enumerate(writes)]
    steps += [(at + end[0], number, True) for number, (_, at, _, _, end) in enumerate(writes) if end is not None]
    for now, number, ending in sorted(steps):
        owner, at, written, longest, end = writes[number]
        own = replicas[owner]
        if not ending:
            own.begin(str(number), written, longest, now)
        elif end is not None:
            if end[1]:
                own.linger(written, now)
            own.end(str(number))
        index = Unsettled.decode(index.with_part(owner, own.part(now), now).encode(), now)
    for _, at, written, longest, end in writes:
        if end is None:
            expected.append((written, at + longest + AFTER))
        elif end[1]:
            expected.append((written, at + end[0] + AFTER))
    now += wait
    unsettled = any(until > now and conflicts(reads, written) for written, until in expected)
    assert bool(index.marks(now) & set(dependencies(reads))) is unsettled
