"""A snapshots process that is killed in the middle of its work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio

from forerun.v1 import snapshot_pb2_grpc
from tests.integration.snapshots.client import Client
from tests.integration.snapshots.processes import Service, as_service

LINES = 3
COMMITS_BEFORE_THE_KILL = (7, 25)


async def test_every_acknowledged_commit_outlives_a_kill_and_no_open_branch_does(tmp_path: Path) -> None:
    service = Service("snapshots", {"data_dir": str(tmp_path / "data")}, tmp_path)
    acknowledged: dict[str, list[str]] = {f"line {number}": [""] for number in range(LINES)}
    try:
        for kill_after in COMMITS_BEFORE_THE_KILL:
            await service.start()
            async with grpc.aio.insecure_channel(service.address) as channel:
                client = Client(snapshot_pb2_grpc.SnapshotServiceStub(channel), as_service("t"), "t")
                await compare(client, acknowledged)
                await until_killed(service, client, acknowledged, kill_after)
        await service.start()
        async with grpc.aio.insecure_channel(service.address) as channel:
            client = Client(snapshot_pb2_grpc.SnapshotServiceStub(channel), as_service("t"), "t")
            await compare(client, acknowledged)
            # Everything that a killed process left half done can be collected, and nothing else.
            await client.collect()
            await compare(client, acknowledged)
    finally:
        await service.kill()


async def until_killed(service: Service, client: Client, acknowledged: dict[str, list[str]], kill_after: int) -> None:
    """Commits to all lines at once until the process is killed."""
    count = 0
    enough = asyncio.Event()

    async def work(line: str) -> None:
        nonlocal count
        while True:
            versions = acknowledged[line]
            step = len(versions)
            branch = f"{line}/{step}"
            await client.written(branch, versions[-1], step=b"%d" % step, **{f"body{step}": b"%d" % step * 2_000})
            versions.append(await client.commit(branch, line))
            count += 1
            if count >= kill_after:
                enough.set()

    workers = [asyncio.create_task(work(line)) for line in acknowledged]
    async with asyncio.timeout(60):
        await enough.wait()
    await service.kill()
    for ended in await asyncio.gather(*workers, return_exceptions=True):
        assert isinstance(ended, grpc.aio.AioRpcError)
        assert ended.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def compare(client: Client, acknowledged: dict[str, list[str]]) -> None:
    """Every acknowledged version is there, whole; what was under way is there whole or not at all."""
    for line, versions in acknowledged.items():
        head = await client.head(line)
        step = len(versions)
        if head != versions[-1]:
            # The commit was done, and its answer got lost: asking again gives the same version.
            assert await client.commit(f"{line}/{step}", line) == head
            versions.append(head)
        elif step > 1:
            await client.fork(f"{line}/{step}", head)
            assert (await client.read("step", branch=f"{line}/{step}")).value == b"%d" % (step - 1)
            await client.discard(f"{line}/{step}")
        for number, version in list(enumerate(versions))[1:]:
            assert await client.value(version, "step") == b"%d" % number
        for number in range(1, len(versions)):
            assert await client.value(head, f"body{number}") == b"%d" % number * 2_000
