"""`forerun models serve` as a user starts it: a real server that is kept answering."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from forerun.runtime.errors import ForerunError
from forerun.runtime.kserve import KServeClient
from forerun.serving.keeper import Keeper
from forerun.serving.probes import Health
from forerun.serving.profile import read_profile
from forerun.serving.render.repository import Link, render
from forerun.serving.server import HOME, Installation, Options, running
from tests.integration.serving.conftest import REPOSITORY, Answer, generate
from tests.triton.test_operations import alive, left_in_memory, shared_memory

pytestmark = pytest.mark.timeout(240)

PROFILE: Mapping[str, Any] = {
    "name": "mine",
    "target": {"kind": "toy"},
    "draft": {"kind": "toy", "agreement": 0.8},
    "speculation": {"kind": "coupled", "drafters": ["recall", "model"]},
    "slots": 4,
}


@dataclass
class Process:
    """The command, running."""

    child: asyncio.subprocess.Process
    profile: Path
    client: KServeClient
    metrics: str
    health: str
    said: list[str] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, **changes: Any) -> None:
        fresh = self.profile.with_suffix(".new")
        fresh.write_text(yaml.safe_dump({**PROFILE, **changes}))
        fresh.replace(self.profile)

    async def ready(self) -> bool:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"http://{self.health}/ready")).status_code == 200

    async def reloads(self, role: str, found: str) -> float:
        """How often a model was loaded anew, as Prometheus hears it."""
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://{self.health}/metrics")).text
        wanted = f'forerun_model_reloads_total{{model="{role}",found="{found}"}} '
        (line,) = [one for one in text.splitlines() if one.startswith(wanted)]
        return float(line.removeprefix(wanted))

    async def until_it_says(self, words: str) -> None:
        async with asyncio.timeout(60):
            while not any(words in line for line in self.said):
                self.heard.clear()
                await self.heard.wait()

    async def answer(self) -> Answer:
        return await generate(self.client, [1, 2, 3], {"max_tokens": 20, "ignore_end": True, "seed": 1})

    async def answer_after_a_failure(self) -> Answer:
        failed = False
        async with asyncio.timeout(60):
            while True:
                try:
                    answer = await self.answer()
                except ForerunError:
                    failed = True
                    continue
                if failed:
                    return answer

    def server(self) -> int:
        """Process of the Triton server."""
        (found,) = [one for one in children(self.child.pid) if "tritonserver" in words_of(one)]
        return found

    def model(self, name: str) -> int:
        """Process of a model."""
        (found,) = [one for one in children(self.server()) if f"/{name}/" in words_of(one)]
        return found


def words_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def children(process: int) -> list[int]:
    return [
        int(one) for task in Path(f"/proc/{process}/task").iterdir() for one in (task / "children").read_text().split()
    ]


@asynccontextmanager
async def serve(folder: Path, *more: str, settings: Mapping[str, Any] = PROFILE) -> AsyncIterator[Process]:
    profile = folder / "profile.yaml"
    profile.write_text(yaml.safe_dump(dict(settings)))
    grpc, http, metrics, health = (f"127.0.0.1:{port}" for port in free_ports(4))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun.cli.main", "models", "serve", str(profile),
        "--triton", str(REPOSITORY / HOME), "--grpc-address", grpc, "--http-address", http,
        "--metrics-address", metrics, "--health-address", health, "--interval", "0.5", "--stop-seconds", "2", *more,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    process = Process(child, profile, KServeClient(grpc), metrics, health)
    reading = asyncio.create_task(read(process))
    try:
        await process.until_it_says("ready: KServe on")
        yield process
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
            await child.wait()
        await reading
        await process.client.close()


def free_ports(count: int) -> list[int]:
    import socket

    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


async def read(process: Process) -> None:
    assert process.child.stderr is not None
    async for line in process.child.stderr:
        process.said.append(line.decode(errors="replace").rstrip())
        process.heard.set()


@pytest.mark.asyncio
async def test_what_dies_is_healed_and_a_changed_profile_takes_over_but_not_a_broken_one(
    installation: Installation, tmp_path: Path
) -> None:
    async with serve(tmp_path) as process:
        assert await process.ready()
        before = await process.answer()
        assert before.version == "1"
        processes = [process.server(), process.model("target-1"), process.model("speculative")]
        prefix = shared_memory(processes[1])

        # The process of a model dies while clients ask; nobody but the command does anything about it.
        os.kill(process.model("target-1"), signal.SIGKILL)
        assert (await process.answer_after_a_failure()).tokens == before.tokens
        await process.until_it_says("target-1 dead")

        # A profile that cannot be coupled: said once, and the old one serves on.
        process.write(draft={"kind": "toy", "vocabulary": 60})
        await process.until_it_says("the one before stays: ")
        assert any("differ in 4 tokens" in line for line in process.said)
        assert (await process.answer()).version == "1"
        assert await process.ready()

        # One that loads and then does not: the server itself refuses it.
        process.write(speculation={**PROFILE["speculation"], "table": str(tmp_path / "none.json")})
        await process.until_it_says("none.json")
        assert (await process.answer()).version == "1"

        process.write(slots=8)
        await process.until_it_says("generation 2")
        after = await process.answer()
        assert (after.version, after.tokens) == ("2", before.tokens)
        assert await process.ready()
        processes += [process.server(), process.model("target-2")]
        process.child.send_signal(signal.SIGTERM)
        assert await process.child.wait() == 0
    assert [one for one in processes if alive(one)] == []
    assert left_in_memory(prefix) == []
    stays = [line for line in process.said if "the one before stays: " in line]
    assert len(stays) == 2, "a profile that is not served is said once, not at every look"


@pytest.mark.asyncio
async def test_when_the_server_itself_ends_the_command_ends_with_an_error(
    installation: Installation, tmp_path: Path
) -> None:
    async with serve(tmp_path) as process:
        models = [process.model("target-1"), process.model("speculative")]
        os.kill(process.server(), signal.SIGKILL)
        async with asyncio.timeout(30):
            assert await process.child.wait() == 1
    assert any("has ended by itself" in line for line in process.said)
    assert [one for one in models if alive(one)] == []


@pytest.mark.asyncio
async def test_a_stopped_model_is_healed_while_clients_ask_and_a_stopped_server_ends_the_command(
    installation: Installation, tmp_path: Path
) -> None:
    async with serve(tmp_path, "--hung-seconds", "3") as process:
        before = await process.answer()
        model = process.model("target-1")
        assert await process.reloads("target", "dead") == 0
        os.kill(model, signal.SIGSTOP)
        assert (await process.answer_after_a_failure()).tokens == before.tokens
        await process.until_it_says("target-1 dead")
        await process.until_it_says("loaded anew: target-1")
        assert await process.reloads("target", "dead") == 1
        assert words_of(model) == "", "the stopped process is not kept"

        models = [process.model("target-1"), process.model("speculative")]
        os.kill(process.server(), signal.SIGSTOP)
        async with asyncio.timeout(60):
            assert await process.child.wait() == 1
    assert any("it has to be started anew" in line for line in process.said)
    assert [one for one in models if alive(one)] == []


@pytest.mark.asyncio
async def test_when_the_command_is_killed_nothing_of_its_server_is_left(
    installation: Installation, tmp_path: Path
) -> None:
    async with serve(tmp_path) as process:
        server = process.server()
        of_models = children(server)
        memory = shared_memory(process.model("target-1"))
        assert left_in_memory(memory)
        process.child.kill()
        async with asyncio.timeout(10):
            while any(alive(one) for one in (server, *of_models)) or left_in_memory(memory):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_a_profile_that_cannot_be_served_is_no_start(installation: Installation, tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(yaml.safe_dump({**PROFILE, "draft": {"kind": "toy", "vocabulary": 60}}))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun.cli.main", "models", "serve", str(profile), "--triton", str(REPOSITORY / HOME),
        *(f"--{name}-address=127.0.0.1:{port}" for name, port in zip(
            ("grpc", "http", "metrics", "health"), free_ports(4), strict=True)),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 1
    assert b"differ in 4 tokens" in said


ENGINE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            asked = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            sender = request.get_response_sender()
            text = pb_utils.Tensor("text_output", asked.reshape(-1))
            sender.send(pb_utils.InferenceResponse([text]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("profile", ["one-gpu", "several-gpus"])
async def test_models_of_engines_are_probed_with_the_tensors_that_their_configuration_asks_for(
    installation: Installation, tmp_path: Path, profile: str
) -> None:
    """The engines need GPUs; their rendered interfaces are read by a real server, with an echo behind them."""
    repository = tmp_path / "repository"
    repository.mkdir()
    files: dict[str, str | Link] = {}
    for name, content in render(read_profile(profile), (), base=REPOSITORY).items():
        if isinstance(content, str):
            content = content.replace('"vllm"', '"python"').replace("KIND_MODEL", "KIND_CPU")
            if name.endswith("config.pbtxt") and "decoupled" not in content:
                content += (
                    "\nmodel_transaction_policy { decoupled: true }\n"  # said in model.yaml, which the engine reads
                )
            files[name] = content
        files[f"{name.partition('/')[0]}/1/model.py"] = ENGINE
    async with running(installation, repository, tmp_path / "log", Options(stop_seconds=2.0)) as server:
        keeper = Keeper(server.client, repository)
        await keeper.deploy(files)
        found = await keeper.check()
    assert {one.model: one.health for one in found} == dict.fromkeys(keeper.models, Health.ANSWERS), found
    assert "target" in keeper.models
