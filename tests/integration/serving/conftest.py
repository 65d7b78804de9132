"""A real Triton server with the toy pair, for the tests of a module."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forerun.runtime.kserve import Inference, KServeClient, StreamBounds, Tensor
from forerun.serving.keeper import Keeper
from forerun.serving.profile import Profile, read_profile
from forerun.serving.render.repository import render
from forerun.serving.server import HOME, Installation, Options, Running, find_installation, running

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENT = StreamBounds(first_seconds=120, idle_seconds=60, total_seconds=900)


@dataclass
class Answer:
    """What a request gave."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    version: str = ""


@dataclass
class Served:
    """A server with its models."""

    running: Running
    keeper: Keeper
    profile: Profile
    repository: Path

    @property
    def client(self) -> KServeClient:
        return self.running.client

    async def generate(self, prompt: Sequence[int], /, **options: Any) -> Answer:
        return await generate(self.client, prompt, options)

    async def metrics(self) -> dict[str, float]:
        """Forerun's own time series by name and labels."""
        import httpx

        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://{self.running.metrics_address}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("forerun_")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def request(prompt: Sequence[int], options: Mapping[str, Any], model: str = "speculative") -> Inference:
    inputs = [Tensor("PROMPT", "INT32", list(prompt)), Tensor("OPTIONS", "BYTES", [json.dumps(options).encode()])]
    return Inference(model=model, inputs=inputs)


async def events(
    client: KServeClient, prompt: Sequence[int], options: Mapping[str, Any], bounds: StreamBounds = PATIENT
) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
    """The events of a stream, and the version of the model that sent them."""
    async with aclosing(client.stream(request(prompt, options), bounds)) as responses:
        async for response in responses:
            (content,) = response.tensors["EVENT"].values
            assert isinstance(content, bytes)
            yield json.loads(content), response.version


async def generate(client: KServeClient, prompt: Sequence[int], options: Mapping[str, Any]) -> Answer:
    answer = Answer()
    async for event, version in events(client, prompt, options):
        answer.tokens += event["tokens"]
        answer.text += event["text"]
        answer.logprobs += event.get("logprobs", [])
        answer.finish = event.get("finish", "")
        answer.usage = event.get("usage", {})
        answer.events += 1
        answer.version = version
    return answer


@pytest.fixture(scope="session")
def installation() -> Installation:
    """The real server; installed where it is not there yet."""
    done = subprocess.run([REPOSITORY / "scripts" / "triton" / "install"], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return find_installation(REPOSITORY / HOME)


@asynccontextmanager
async def serving(
    installation: Installation, folder: Path, profile: Profile, orders: Path | None = None
) -> AsyncIterator[Served]:
    """A server with the models of a profile."""
    repository = folder / "repository"
    repository.mkdir(parents=True)
    async with running(installation, repository, folder / "log", Options(stop_seconds=2.0)) as server:
        keeper = Keeper(server.client, repository)
        await keeper.deploy(render(profile, (), base=REPOSITORY, orders=orders))
        yield Served(server, keeper, profile, repository)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def toy(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serving(installation, tmp_path_factory.mktemp("toy"), read_profile("toy")) as served:
        yield served
