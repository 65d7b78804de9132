from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import Ids, SeededIds, SystemIds


class SetClock:
    def __init__(self, now: float) -> None:
        self.value = now

    def now(self) -> float:
        return self.value

    def monotonic(self) -> float:
        return self.value


def sources(clock: SetClock) -> list[Ids]:
    return [SystemIds(clock), SeededIds(5, clock)]


@pytest.mark.parametrize("index", [0, 1])
def test_uuid7_follows_the_rfc(index: int) -> None:
    clock = SetClock(1_645_557_742.0)
    value = UUID(sources(clock)[index].uuid7())
    assert value.version == 7
    assert value.variant == "specified in RFC 4122"
    assert value.int >> 80 == 0x017F22E279B0  # the RFC's own example time


@pytest.mark.parametrize("index", [0, 1])
@given(times=st.lists(st.floats(min_value=1.6e9, max_value=1.7e9), min_size=2, max_size=50))
def test_uuid7_grows_whatever_the_clock_does(index: int, times: list[float]) -> None:
    clock = SetClock(times[0])
    ids = sources(clock)[index]
    made = []
    for time in times:
        clock.value = time
        made += [ids.uuid7(), ids.uuid7()]
    assert made == sorted(set(made))


def test_seeded_ids_repeat_and_differ_by_seed() -> None:
    def draw(seed: int) -> tuple[str, str, float]:
        ids = SeededIds(seed, SetClock(1.7e9))
        return ids.uuid7(), ids.token(16), ids.fraction()

    assert draw(1) == draw(1)
    assert all(a != b for a, b in zip(draw(1), draw(2), strict=True))


@pytest.mark.parametrize("index", [0, 1])
def test_tokens_hold_the_asked_bytes_and_fractions_are_in_range(index: int) -> None:
    ids = sources(SetClock(1.7e9))[index]
    assert len(ids.token(32)) == 43
    assert all(0 <= ids.fraction() < 1 for _ in range(1000))
    assert len({ids.token(16) for _ in range(100)}) == 100


def test_the_system_clock_tells_epoch_seconds_and_does_not_go_back() -> None:
    clock = SystemClock()
    assert clock.now() > 1.7e9
    first = clock.monotonic()
    assert clock.monotonic() >= first
