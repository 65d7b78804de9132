"""Which level a command gets."""

from dataclasses import replace

import pytest

from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.sandbox.isolation.launch import Child, Launch
from forerun.sandbox.isolation.levels import Choice, Isolation, Ladder, Level, LevelName
from forerun.sandbox.runners.level import strengths

ALL = (LevelName.GVISOR, LevelName.BUBBLEWRAP, LevelName.PROCESS)


class Named:
    """A level of which only the name counts."""

    gives = ""
    mounts_workspace = True

    def __init__(self, name: LevelName) -> None:
        self.name = name

    async def start(self, launch: Launch) -> Child:
        raise NotImplementedError


def ladder(*usable: LevelName) -> Ladder:
    levels = tuple(Level(name, name in usable, f"why {name.value}", "") for name in ALL)
    found: dict[LevelName, Isolation] = {name: Named(name) for name in usable}
    return Ladder(levels, found)


@pytest.mark.parametrize("usable", [ALL, ALL[1:], ALL[2:]])
def test_auto_takes_the_strongest(usable: tuple[LevelName, ...]) -> None:
    chosen = ladder(*usable).chosen(Choice.AUTO)
    assert chosen.in_use is usable[0]
    assert chosen.choose().name is usable[0]


def test_a_chosen_level_is_used_and_a_stronger_one_only_where_a_server_asks() -> None:
    chosen = ladder(*ALL).chosen(Choice.BUBBLEWRAP)
    assert chosen.in_use is LevelName.BUBBLEWRAP
    assert chosen.choose().name is LevelName.BUBBLEWRAP
    assert chosen.choose(LevelName.BUBBLEWRAP).name is LevelName.BUBBLEWRAP
    assert chosen.choose(LevelName.GVISOR).name is LevelName.GVISOR
    assert chosen.chosen(Choice.AUTO).in_use is LevelName.GVISOR


def test_what_is_not_there_is_refused_with_the_setting_and_the_reason() -> None:
    for refused, setting in (
        (lambda: ladder(*ALL[1:]).chosen(Choice.GVISOR), "isolation"),
        (lambda: ladder(*ALL[1:]).choose(LevelName.GVISOR), "min_isolation"),
    ):
        with pytest.raises(FailedPrecondition, match=f"^{setting} is gvisor.*bubblewrap: why gvisor") as error:
            refused()
        assert error.value.reason is ErrorReason.ISOLATION_UNAVAILABLE
        assert error.value.metadata == {setting: "gvisor", "available": "bubblewrap"}


def test_pods_are_stronger_than_bubblewrap_and_meet_gvisor_only_with_kernels_of_their_own() -> None:
    everything = (LevelName.POD, LevelName.BUBBLEWRAP, LevelName.PROCESS)
    shared = ladder(*everything)
    assert shared.chosen(Choice.AUTO).in_use is LevelName.POD
    assert shared.choose(LevelName.BUBBLEWRAP).name is LevelName.POD
    with pytest.raises(FailedPrecondition, match=r"min_isolation is gvisor.*strongest level is pod"):
        shared.choose(LevelName.GVISOR)
    own = replace(shared, strength=strengths(own_kernel=True))
    assert own.choose(LevelName.GVISOR).name is LevelName.POD
    both = replace(ladder(LevelName.GVISOR, *everything), strength=strengths(own_kernel=True))
    assert both.in_use is LevelName.GVISOR
    assert both.chosen(Choice.POD).choose(LevelName.GVISOR).name is LevelName.POD


def test_a_ladder_without_a_level_falls_back() -> None:
    chosen = ladder(LevelName.POD, LevelName.PROCESS).chosen(Choice.POD).without(LevelName.POD)
    assert chosen.choose().name is LevelName.PROCESS
    with pytest.raises(FailedPrecondition):
        chosen.choose(LevelName.POD)
