"""The platform that a demo runs on: its own, started for it, or one that runs already."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio

from forerun.cli.demo.figures import Surroundings
from forerun.cli.demo.toolbench import Toolbench
from forerun.cli.up import Platform
from forerun.client import AsyncClient, Call, Mode
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.v1 import sandbox_pb2, sandbox_pb2_grpc

_DESCRIBE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
_LOOKS: Final = 20
_PROBE: Final = "demo-probe"


@dataclass(frozen=True, slots=True)
class Host:
    """A platform that serves.

    Attributes:
        client: An open client of it.
        surroundings: Asks what the demo ran on.
    """

    client: AsyncClient
    surroundings: Callable[[], Awaitable[Surroundings]]


@contextlib.asynccontextmanager
async def own_platform(data_dir: Path, tools: Toolbench, *, concurrency: int) -> AsyncIterator[Host]:
    """Starts a platform for the demo alone, and stops it at the end.

    Raises:
        ForerunError: It did not start; everything is stopped again.
    """
    # Nearly all tools of the demo only wait. A message has at most five calls, so no authoritative call queues; every
    # second session may have all of its four speculations running.
    slots = {
        "FORERUN_SANDBOX_AUTHORITATIVE_SLOTS": str(5 * concurrency),
        "FORERUN_SANDBOX_SPECULATIVE_SLOTS": str(2 * concurrency),
    }
    platform = Platform(data_dir, tools.policy_file, port=0, environment=slots)

    async def surroundings() -> Surroundings:
        return Surroundings(isolation=await _isolation(platform), restarts=platform.restarts)

    async with platform, AsyncClient(platform.address, platform.token) as client:
        yield Host(client, surroundings)


async def check_running(address: str) -> None:
    """Opens a session at a platform that should run already, before anything is made for it.

    Raises:
        ForerunClientError: It cannot be reached, no token is known, or it refuses the token.
    """
    async with AsyncClient(address) as client, client.session(_PROBE, mode=Mode.OFF, label=f"{_PROBE}.{_PROBE}"):
        pass


async def has_tools(address: str) -> bool:
    """Whether a running platform reaches tools of the demo already, as one on Kubernetes does by `demo.enabled`.

    Raises:
        ForerunClientError: It cannot be reached, no token is known, or it refuses the token.
    """
    async with AsyncClient(address) as client:
        return await _answers(client)


@contextlib.asynccontextmanager
async def running_platform(address: str, tools: Toolbench | None) -> AsyncIterator[Host]:
    """Uses a platform that runs already.

    Args:
        address: Where it is.
        tools: Those that run for this demo, in the policy file that the platform was started with; None where the
            platform has tools of its own.

    Raises:
        FailedPrecondition: It does not know the demo's tools.
        ForerunClientError: It cannot be reached, or refuses the token.
    """

    async def surroundings() -> Surroundings:
        return Surroundings(isolation=None, restarts=None)

    async with AsyncClient(address) as client:
        if tools is not None:
            await _until_known(client, tools)
        yield Host(client, surroundings)


async def _isolation(platform: Platform) -> str:
    bearer = (("authorization", f"Bearer {platform.internal_token}"),)
    async with grpc.aio.insecure_channel(platform.address_of("sandbox")) as channel:
        stub: Any = sandbox_pb2_grpc.SandboxServiceStub(channel)
        described: sandbox_pb2.DescribeResponse = await stub.Describe(
            sandbox_pb2.DescribeRequest(), timeout=_DESCRIBE_SECONDS, metadata=bearer
        )
    return described.isolation


async def _until_known(client: AsyncClient, tools: Toolbench) -> None:
    """Waits until the platform calls the tools of this very run: it reads a changed policy file within seconds."""
    for _ in range(_LOOKS):
        if await _answers(client):
            return
        await asyncio.sleep(_LOOK_SECONDS)
    raise FailedPrecondition(
        ErrorReason.DEPENDENCY_MISSING,
        f"the platform at {client.address} does not reach the demo's tools; start it on this machine with "
        f"`forerun up --policy {tools.policy_file}`, or leave --target out and the demo starts its own",
        metadata={"policy_file": str(tools.policy_file)},
    )


async def _answers(client: AsyncClient) -> bool:
    """Asks for one search, as an agent that no policy is for: nothing is learned from it or run ahead of it."""
    async with client.session(_PROBE, mode=Mode.OFF, label=f"{_PROBE}.{_PROBE}") as session:
        (result,) = await session.call_tools([Call("search", {"q": "probe"})])
    return result.ok and not result.tool_error
