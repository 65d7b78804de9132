"""Serving goes on: generations switch under traffic, what is broken stays out, what died is healed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from forerun.runtime.errors import FailedPrecondition, ForerunError
from forerun.serving.probes import Health
from forerun.serving.profile import Profile, read_profile
from forerun.serving.render.coupled import SERVED
from forerun.serving.render.repository import Link, render
from forerun.serving.server import Installation
from tests.integration.serving.conftest import REPOSITORY, Served, serving


def process_of(served: Served, model: str) -> int:
    """The process of a model's only instance."""
    wanted = f"{served.repository / model}/"
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (OSError, ValueError):
            continue
        if "triton_python_backend_stub" in words and wanted in words:
            return int(entry.name)
    raise AssertionError(f"no process of {model}")


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def shared_memory(process: int) -> str:
    """Prefix of the names of the shared memory that a model's process was given."""
    words = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
    (name,) = (word for word in words if word.startswith("forerun_"))
    return name[: name.rindex("_")]


def left_in_memory(prefix: str) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"{prefix}*")]


def generation(profile: Profile, number: int) -> dict[str, str | Link]:
    return dict(render(profile, (), base=REPOSITORY, generation=number))


@pytest_asyncio.fixture
async def served(installation: Installation, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(installation, tmp_path, read_profile("toy")) as one:
        yield one


class Traffic:
    """Clients that ask without pause."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._over = asyncio.Event()
        self.answers: dict[str, int] = {}
        self.failures: list[ForerunError] = []
        self._fresh = asyncio.Condition()

    async def run(self, first: int) -> None:
        while not self._over.is_set():
            try:
                answer = await self._served.generate([first, 2, 3], max_tokens=40, ignore_end=True, depth=3)
            except ForerunError as error:
                self.failures.append(error)
                continue
            assert len(answer.tokens) == 40
            async with self._fresh:
                self.answers[answer.version] = self.answers.get(answer.version, 0) + 1
                self._fresh.notify_all()

    async def until(self, version: str, count: int) -> None:
        """Until so many more answers came from a version."""
        wanted = self.answers.get(version, 0) + count
        async with asyncio.timeout(40), self._fresh:
            await self._fresh.wait_for(lambda: self.answers.get(version, 0) >= wanted)

    def end(self) -> None:
        self._over.set()


async def test_a_new_generation_takes_over_under_traffic_and_a_broken_one_does_not(served: Served) -> None:
    traffic = Traffic(served)
    async with asyncio.TaskGroup() as group:
        for first in range(1, 5):
            group.create_task(traffic.run(first))
        await traffic.until("1", 5)
        await served.keeper.deploy(generation(served.profile, 2))
        await traffic.until("2", 5)

        broken = generation(served.profile, 3)
        broken[f"{SERVED}/3/model.py"] = "raise RuntimeError('broken on purpose')"
        with pytest.raises(FailedPrecondition, match="broken on purpose"):
            await served.keeper.deploy(broken)
        await traffic.until("2", 5)
        traffic.end()
    assert traffic.failures == []
    assert set(traffic.answers) == {"1", "2"}
    states = {(one.name, one.version): one for one in await served.client.index()}
    assert states[SERVED, "2"].ready
    assert "broken on purpose" in states[SERVED, "3"].reason
    # On disk, too, what serves is what a server that starts again would load.
    assert sorted(path.name for path in served.repository.iterdir()) == ["chat", "draft-2", SERVED, "target-2"]
    assert (served.repository / SERVED / "2" / "model.py").exists()


async def test_a_dead_model_process_is_noticed_and_healed_though_the_server_says_ready(served: Served) -> None:
    before = await served.generate([1, 2, 3], max_tokens=20, ignore_end=True)
    os.kill(process_of(served, "target-1"), signal.SIGKILL)
    with pytest.raises(ForerunError, match="not healthy"):
        await served.generate([1, 2, 3], max_tokens=20, ignore_end=True)
    assert await served.client.says_ready("target-1")

    found = {one.model: one.health for one in await served.keeper.check()}
    assert found == {"target-1": Health.DEAD, "draft-1": Health.ANSWERS, "chat": Health.ANSWERS, SERVED: Health.ANSWERS}
    assert served.keeper.healed == 1
    assert await served.generate([1, 2, 3], max_tokens=20, ignore_end=True) == before


async def test_models_are_probed_while_another_generation_loads(served: Served) -> None:
    """Else a pod would count as not ready for as long as that takes."""
    async with served.keeper._changing, asyncio.timeout(20):
        found = await served.keeper.check()
    assert [one.health for one in found] == [Health.ANSWERS] * len(served.keeper.models)


async def test_the_loops_own_process_is_healed_too(served: Served) -> None:
    os.kill(process_of(served, SERVED), signal.SIGKILL)
    found = {one.model: one.health for one in await served.keeper.check()}
    assert found[SERVED] is Health.DEAD
    assert {one.health for one in await served.keeper.check()} == {Health.ANSWERS}
    assert (await served.generate([1, 2, 3], max_tokens=5)).finish


async def test_an_unloaded_model_is_loaded_again(served: Served) -> None:
    await served.client.unload("draft-1")
    found = {one.model: one.health for one in await served.keeper.check()}
    assert found["draft-1"] is Health.ABSENT
    assert (await served.keeper.probe("draft-1")).health is Health.ANSWERS


async def test_nothing_of_a_server_is_left_when_it_has_been_stopped(installation: Installation, tmp_path: Path) -> None:
    async with serving(installation, tmp_path, read_profile("toy")) as served:
        processes = [process_of(served, model) for model in served.keeper.models] + [served.running.pid]
        prefix = shared_memory(processes[0])
        assert left_in_memory(prefix)
    assert [one for one in processes if alive(one)] == []
    assert left_in_memory(prefix) == []


async def test_models_of_other_vocabularies_are_not_coupled(installation: Installation, tmp_path: Path) -> None:
    profile = read_profile("toy")
    assert profile.draft is not None
    other = profile.model_copy(update={"draft": profile.draft.model_copy(update={"vocabulary": 60})})
    with pytest.raises(FailedPrecondition, match=r"differ in 4 tokens: 60: ' w60' in target, nothing in draft; 61"):
        async with serving(installation, tmp_path, other):
            pass
