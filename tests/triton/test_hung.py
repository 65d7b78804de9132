"""Models whose process hangs, on a real server: told from busy ones, ended, loaded anew; what was under way ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from forerun.runtime.errors import DeadlineExceeded, ForerunError, Unavailable
from forerun.runtime.kserve import StreamBounds
from forerun.serving.keeper import Keeper
from forerun.serving.probes import Health
from forerun.serving.processes import end_processes
from forerun.serving.profile import Profile, read_profile
from forerun.serving.render.coupled import CHAT, SERVED
from forerun.serving.render.repository import Link, render
from forerun.serving.server import Installation, Options, running
from forerun.serving.watching import watch_of
from tests.integration.serving.conftest import REPOSITORY, Answer, Served, events, generate
from tests.triton.test_operations import process_of

pytestmark = pytest.mark.timeout(180)

HUNG_SECONDS = 100.0
PATIENCE = StreamBounds(first_seconds=60, idle_seconds=5, total_seconds=120)
LONG: Mapping[str, object] = {"max_tokens": 4_000, "ignore_end": True, "depth": 3, "drafters": ["model"]}

HANGS_ONCE = """
import pathlib
import threading

_once = pathlib.Path({path!r})
_execute = TritonPythonModel.execute


def execute(self, requests):
    if _once.exists():
        _once.unlink()
        threading.Event().wait()
    return _execute(self, requests)


TritonPythonModel.execute = execute
"""
"""Behind a model's own file: the next inference never ends. Only that process hangs, and the next one does not."""

SLOW = """
import time

_execute = TritonPythonModel.execute


def execute(self, requests):
    time.sleep(0.1)
    return _execute(self, requests)


TritonPythonModel.execute = execute
"""


@dataclass
class Kept(Served):
    """A server that is watched, on a clock of the test."""

    hangs: Path
    now: float = 1_000.0

    async def found(self) -> dict[str, Health]:
        return {one.model: one.health for one in await self.keeper.check()}

    def counts(self) -> dict[str, float]:
        lines = [one for one in self.keeper.metrics().splitlines() if not one.startswith("#")]
        return {name: float(value) for name, _, value in (one.rpartition(" ") for one in lines)}


@asynccontextmanager
async def kept(
    installation: Installation,
    folder: Path,
    *,
    behind: Mapping[str, str] | None = None,
    probe_seconds: float = 1.0,
    profile: Profile | None = None,
) -> AsyncIterator[Kept]:
    """A watched server with the toy pair; what is given by model comes behind the model's own file."""
    profile = profile or read_profile("toy")
    hangs = folder / "hangs"
    files: dict[str, str | Link] = dict(render(profile, (), base=REPOSITORY))
    for model, more in (behind or {}).items():
        name = f"{model}/1/model.py"
        files[name] = f"{files[name]}{more.format(path=str(hangs))}"
    repository = folder / "repository"
    repository.mkdir(parents=True)
    async with running(installation, repository, folder / "log", Options(stop_seconds=2.0)) as server:
        watch = watch_of(server, end_processes, hung_seconds=HUNG_SECONDS)
        keeper = Keeper(server.client, repository, probe_seconds=probe_seconds, watch=watch)
        one = Kept(server, keeper, profile, repository, hangs)
        watch.now = lambda: one.now
        await keeper.deploy(files)
        yield one


def is_gone(process: int) -> bool:
    """Nothing of it runs; its parent may not have asked for its end yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def ends(text: asyncio.Task[Answer]) -> ForerunError:
    with pytest.raises(ForerunError) as raised:
        async with asyncio.timeout(30):
            await text
    return raised.value


async def long_text(one: Kept, first: int) -> tuple[asyncio.Task[Answer], asyncio.Event]:
    """A text under way, and what is set once it has begun."""
    begun = asyncio.Event()

    async def read() -> Answer:
        answer = Answer()
        async for event, _ in events(one.client, [first, 2, 3], LONG, PATIENCE):
            answer.tokens += event["tokens"]
            begun.set()
        return answer

    return asyncio.create_task(read()), begun


@pytest.mark.parametrize("model", ["target-1", SERVED])
async def test_a_stopped_process_is_noticed_at_the_next_check_and_healed(
    installation: Installation, tmp_path: Path, model: str
) -> None:
    """The server finds by itself that such a process does not react, and would keep it, stopped, for ever."""
    async with kept(installation, tmp_path, probe_seconds=5.0) as one:
        before = await one.generate([1, 2, 3], max_tokens=20, ignore_end=True)
        process = process_of(one, model)
        text, begun = await long_text(one, 5)
        await begun.wait()
        os.kill(process, signal.SIGSTOP)
        assert (await one.found())[model] is Health.DEAD
        assert isinstance(await ends(text), Unavailable if model != SERVED else DeadlineExceeded)
        assert is_gone(process)
        assert set((await one.found()).values()) == {Health.ANSWERS}
        assert await one.generate([1, 2, 3], max_tokens=20, ignore_end=True) == before
        role = model.partition("-")[0]
        assert one.counts()[f'forerun_model_reloads_total{{model="{role}",found="dead"}}'] == 1


@pytest.mark.parametrize("model", ["target-1", "draft-1", CHAT, SERVED])
async def test_an_inference_that_never_ends_is_noticed_at_the_bound_and_healed(
    installation: Installation, tmp_path: Path, model: str
) -> None:
    role = model.partition("-")[0]
    async with kept(installation, tmp_path, behind={model: HANGS_ONCE}) as one:
        before = await one.generate([1, 2, 3], max_tokens=20, ignore_end=True)
        process = process_of(one, model)
        one.hangs.touch()
        text = None
        if model != CHAT:
            text = asyncio.create_task(generate_patiently(one))

        found = await one.found()
        assert found[model] is Health.BUSY, "one check is no evidence"
        assert not one.hangs.exists(), "it hangs"
        one.now += HUNG_SECONDS - 1
        assert (await one.found())[model] is Health.BUSY
        assert one.keeper.healed == 0
        assert one.counts()[f'forerun_model_stalled_seconds{{model="{role}"}}'] == HUNG_SECONDS - 1

        one.now += 1
        found = await one.found()
        assert found[model] is Health.HUNG
        assert one.keeper.healed == 1, "who only waited for it is not loaded anew"
        assert is_gone(process)
        assert set((await one.found()).values()) == {Health.ANSWERS}
        assert await one.generate([1, 2, 3], max_tokens=20, ignore_end=True) == before
        assert one.counts()[f'forerun_model_reloads_total{{model="{role}",found="hung"}}'] == 1
        assert one.counts()[f'forerun_model_stalled_seconds{{model="{role}"}}'] == 0
        if text is not None:
            await ends(text)


async def generate_patiently(one: Kept) -> Answer:
    """A text whose reader waits longer for its next token than it takes to notice what hangs."""
    answer = Answer()
    async for event, _ in events(one.client, [5, 2, 3], LONG, StreamBounds(first_seconds=20, idle_seconds=20)):
        answer.tokens += event["tokens"]
    return answer


async def test_a_slow_model_with_a_long_queue_is_busy_and_never_hung(
    installation: Installation, tmp_path: Path
) -> None:
    """Every check comes after the bound, no probe gets an answer, and still its work goes on."""
    profile = read_profile("toy").model_copy(update={"slots": 1})
    async with kept(
        installation, tmp_path, behind={"target-1": SLOW}, probe_seconds=0.05, profile=profile
    ) as one, aclosing(events(one.client, [1, 2, 3], {**LONG, "depth": 0})) as first:  # fmt: skip
        await anext(first)
        waiting = [asyncio.create_task(generate(one.client, [n, 2, 3], {"max_tokens": 5})) for n in range(4, 8)]
        process = process_of(one, SERVED), process_of(one, "target-1")
        for _ in range(4):
            found = await one.found()
            assert (found["target-1"], found[SERVED]) == (Health.BUSY, Health.BUSY)
            one.now += 2 * HUNG_SECONDS
            for _ in range(6):  # longer than counters are held back
                await anext(first)
        assert one.keeper.healed == 0
        assert process == (process_of(one, SERVED), process_of(one, "target-1"))
        await first.aclose()
        assert all([(await text).finish for text in waiting]), "whoever waited gets an answer"


def test_only_the_processes_of_that_version_and_what_they_started_are_ended(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = (
        "import subprocess, sys, time\n"
        "below = subprocess.Popen(['sleep', '60'])\n"
        f"print(below.pid, file=open({str(started)!r}, 'w'), flush=True)\n"
        "time.sleep(60)"
    )

    def stub(instance: str, file: str, code: str = "import time; time.sleep(60)") -> subprocess.Popen[bytes]:
        words = ["/backends/triton_python_backend_stub", "-c", code, f"/repository/{file}/model.py", instance]
        return subprocess.Popen(words, executable=sys.executable)

    target = stub("target-1_0_0", "target-1/1", code)
    others = [stub("target-10_0_0", "target-10/1"), stub("speculative_0_0", "speculative/1")]
    engine = stub("speculative_0_1", "backends/vllm")
    try:
        while not (started.exists() and started.read_text()):
            os.sched_yield()
        assert end_processes(os.getpid(), "target-1", "1") == [target.pid]
        assert target.wait() == -signal.SIGKILL
        while not is_gone(int(started.read_text())):
            os.sched_yield()  # what is killed ends a moment later
        assert [one.poll() for one in others] == [None, None]
        assert end_processes(os.getpid(), "speculative", "2") == [engine.pid], "a backend in Python names no version"
        assert end_processes(os.getpid(), "target-1", "1") == []
        assert [one.poll() for one in others] == [None, None]
    finally:
        for one in (target, engine, *others):
            one.kill()
            one.wait()
