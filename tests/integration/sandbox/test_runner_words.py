"""What a runner says is bounded and held to what a command can say: a command may have become its runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forerun.sandbox.commands.runner import CommandPlan
from forerun.sandbox.isolation.launch import Bind, SetupFailed
from forerun.sandbox.isolation.limits import CommandLimits, LimitReason
from forerun.sandbox.runners.remote import Lost, Remote
from forerun.v1 import runner_pb2, runner_pb2_grpc
from tests.integration.sandbox.runner_processes import (
    Authority,
)
from tests.integration.sandbox.runner_stage import ANN, CLAIM, plan, served


async def test_what_a_runner_says_is_bounded(authority: Authority, tmp_path: Path) -> None:
    """A command that became its runner sends more than any command may write, and names that lead elsewhere."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with lying(authority, tmp_path, output=40) as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        assert (await remote.run(plan("true", workspace, output_total_bytes=1_000_000))).limit is LimitReason.OUTPUT
        await remote.end()
    for path in (b"../out", b"a/../../out", b"/etc/out", b"link/out"):
        (workspace / "link").unlink(missing_ok=True)
        (workspace / "link").symlink_to(tmp_path)
        async with lying(authority, tmp_path, path=path) as address:
            remote = await Remote.take(address, authority.worker_tls, CLAIM)
            with pytest.raises(Lost):
                await remote.run(plan("true", workspace))
            await remote.end()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "end",
    [
        runner_pb2.RunEnded(exit_code=-1),
        runner_pb2.RunEnded(exit_code=2**31 - 1),
        runner_pb2.RunEnded(exit_code=0, cpu_seconds=float("nan")),
        runner_pb2.RunEnded(exit_code=0, cpu_seconds=float("inf")),
        runner_pb2.RunEnded(exit_code=0, cpu_seconds=-1.0),
        runner_pb2.RunEnded(),
    ],
)
async def test_an_end_that_no_command_has_is_a_lost_runner(
    end: runner_pb2.RunEnded, authority: Authority, tmp_path: Path
) -> None:
    async with lying(authority, tmp_path, end=end) as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        with pytest.raises(Lost) as lost:
            await remote.run(plan("true"))
        assert lost.value.begun
        await remote.end()


async def test_the_words_of_a_runner_are_bounded(authority: Authority, tmp_path: Path) -> None:
    async with lying(authority, tmp_path, end=runner_pb2.RunEnded(setup_failure="x" * 1_000_000)) as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        with pytest.raises(SetupFailed) as failed:
            await remote.run(plan("true"))
        assert len(str(failed.value)) == 1000
        await remote.end()
    many = runner_pb2.RunEnded(exit_code=0, stdout=runner_pb2.RunStream(total_bytes=1, replaced_bytes=2**60))
    async with lying(authority, tmp_path, end=many) as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        assert (await remote.run(plan("true"))).stdout.replaced_bytes == 0
        await remote.end()


async def test_changes_that_were_not_asked_for_are_a_lost_runner(authority: Authority, tmp_path: Path) -> None:
    """Also of a command that only reads: nobody counts what is thrown away."""
    (workspace := tmp_path / "workspace").mkdir()
    bind = Bind(str(workspace), read_only=True)
    command = CommandPlan(("true",), {}, bind, (), None, CommandLimits(), ANN)
    async with lying(authority, tmp_path, path=b"new") as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        with pytest.raises(Lost):
            await remote.run(command)
        await remote.end()
    assert not list(workspace.iterdir())


@asynccontextmanager
async def lying(
    authority: Authority,
    folder: Path,
    *,
    output: int = 0,
    path: bytes = b"",
    end: runner_pb2.RunEnded | None = None,
) -> AsyncIterator[str]:
    class Liar(runner_pb2_grpc.RunnerServiceServicer):
        async def Try(self, request: runner_pb2.TryRequest, context: object) -> runner_pb2.TryResponse:  # noqa: N802
            return runner_pb2.TryResponse()

        async def Take(  # noqa: N802
            self, request: runner_pb2.TakeRequest, context: object
        ) -> AsyncIterator[runner_pb2.TakeResponse]:
            yield runner_pb2.TakeResponse()
            await asyncio.sleep(30)

        async def Run(  # noqa: N802
            self, request_iterator: AsyncIterator[runner_pb2.RunRequest], context: object
        ) -> AsyncIterator[runner_pb2.RunResponse]:
            await anext(request_iterator)
            yield runner_pb2.RunResponse(accepted=runner_pb2.RunAccepted())
            async for request in request_iterator:
                if request.WhichOneof("part") == "begin":
                    break
            for _ in range(output):
                yield runner_pb2.RunResponse(output=runner_pb2.RunOutput(data=b"x" * 1_000_000))
            if path:
                entry = runner_pb2.TreeEntry(path=path, kind=runner_pb2.TREE_KIND_FILE, mode=0o644, content=b"out")
                yield runner_pb2.RunResponse(changes=runner_pb2.TreePart(entries=[entry]))
            yield runner_pb2.RunResponse(ended=end or runner_pb2.RunEnded(exit_code=0))

    async with served(authority, Liar()) as address:
        yield address
