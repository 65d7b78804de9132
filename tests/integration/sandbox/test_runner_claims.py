"""A runner that says that a command did not start: its word counts only where it was not told the command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import (
    NEVER_STARTED,
    STARTED_KEY,
    STATUS_DETAILS_KEY,
    ErrorReason,
    Unavailable,
    to_rpc_status,
)
from forerun.sandbox.connectors.command import CommandConnector
from forerun.sandbox.connectors.port import Ended, ToolFault
from forerun.sandbox.isolation.launch import SetupFailed
from forerun.sandbox.isolation.levels import Ladder, LevelName
from forerun.sandbox.runners.level import Pod
from forerun.sandbox.runners.pool import Runners
from forerun.sandbox.runners.remote import Remote
from forerun.sandbox.tools import CommandEndpoint, Hints, Server, tool
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.workspace import WorkspaceLimits
from forerun.v1 import runner_pb2, runner_pb2_grpc
from tests.integration.sandbox.runner_processes import Authority
from tests.integration.sandbox.runner_stage import CLAIM, plan, pool, served
from tests.unit.sandbox.fakes import invocation

_SECRET = "echo what nobody may run twice"


class Hostile(runner_pb2_grpc.RunnerServiceServicer):
    """Runs whatever it is told the moment it is told, and denies it.

    Args:
        told: Gets the command each time it is told.
        accepts: It hears the workspace and the command before it denies.
        ended: What it says then; None: that it is stopping.
    """

    def __init__(self, told: list[str], *, accepts: bool, ended: runner_pb2.RunEnded | None = None) -> None:
        self._told = told
        self._accepts = accepts
        self._ended = ended

    async def Try(self, request: runner_pb2.TryRequest, context: object) -> runner_pb2.TryResponse:  # noqa: N802
        return runner_pb2.TryResponse()

    async def Take(  # noqa: N802
        self, request: runner_pb2.TakeRequest, context: object
    ) -> AsyncIterator[runner_pb2.TakeResponse]:
        yield runner_pb2.TakeResponse()
        await asyncio.sleep(30)

    async def Run(  # noqa: N802
        self, request_iterator: AsyncIterator[runner_pb2.RunRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[runner_pb2.RunResponse]:
        heard = 0
        async for request in request_iterator:
            heard += 1
            self._told += [word for word in request.command.argv if word == _SECRET]
            if request.WhichOneof("part") == "begin":
                break
            if heard == 1:
                if not self._accepts:
                    break
                yield runner_pb2.RunResponse(accepted=runner_pb2.RunAccepted())
        if self._ended is not None:
            yield runner_pb2.RunResponse(ended=self._ended)
            return
        never = {STARTED_KEY: NEVER_STARTED}
        status = to_rpc_status(Unavailable(ErrorReason.SHUTTING_DOWN, "this runner has ended", metadata=never))
        details = ((STATUS_DETAILS_KEY, status.SerializeToString()),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, status.message, details)


@dataclass
class Found:
    """Its address."""

    address: str


@asynccontextmanager
async def hostile(
    authority: Authority, told: list[str], *, accepts: bool, ended: runner_pb2.RunEnded | None = None
) -> AsyncIterator[Runners]:
    """A pool of three of them, as many as a command tries."""
    async with AsyncExitStack() as stack:
        found = [
            Found(await stack.enter_async_context(served(authority, Hostile(told, accepts=accepts, ended=ended))))
            for _ in range(3)
        ]
        yield await stack.enter_async_context(pool(found, authority, wait=10.0))


async def test_a_command_is_told_to_one_runner_only(authority: Authority) -> None:
    told: list[str] = []
    async with hostile(authority, told, accepts=True) as pods:
        with pytest.raises(ToolFault) as lost:
            await pods.run(plan(_SECRET))
    assert told == [_SECRET]
    assert (lost.value.ended, lost.value.not_started) == (Ended.UNAVAILABLE, False)


async def test_runners_that_refuse_are_told_no_command_and_the_next_one_is_asked(authority: Authority) -> None:
    told: list[str] = []
    async with hostile(authority, told, accepts=False) as pods:
        with pytest.raises(SetupFailed, match="3 runners went away"):
            await pods.run(plan(_SECRET))
    assert told == []


@pytest.mark.parametrize("reach_out", [True, False])
async def test_that_a_command_did_not_come_up_counts_where_it_could_reach_nobody(
    reach_out: bool, authority: Authority, tmp_path: Path
) -> None:
    told: list[str] = []
    asked = invocation(tool("run", Server("s"), CommandEndpoint(("/bin/sh", "-c", _SECRET)), hints=Hints()))
    denied = runner_pb2.RunEnded(setup_failure="it did not come up")
    async with hostile(authority, told, accepts=True, ended=denied) as pods:
        connector = CommandConnector(
            Ladder((), {LevelName.POD: Pod(inside="process", gives="a pod", own_kernel=False)}),
            Workspaces(tmp_path, Strategy.COPY, WorkspaceLimits(), SystemClock()),
            str(tmp_path), max_bytes=1_000_000, pods=pods, reach_out=reach_out,
        )  # fmt: skip
        with pytest.raises(ToolFault) as failed:
            await connector.call(asked, lambda _: None)
    assert told == [_SECRET]
    assert failed.value.not_started is not reach_out


class Unwatched:
    """A stream that fails as nobody had foreseen."""

    async def read(self) -> object:
        raise RuntimeError("a fault of ours")

    def cancel(self) -> None:
        pass


async def test_a_runner_that_nobody_watches_any_more_counts_as_lost() -> None:
    remote = Remote("nowhere", grpc.aio.insecure_channel("127.0.0.1:1"), CLAIM, Unwatched())
    async with asyncio.timeout(10):
        await remote.lost.wait()
    await remote.end()
