"""A tenant and its disk: failures, callers that go away, and collections at a bad moment."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason, FailedPrecondition, ResourceExhausted
from forerun.runtime.metrics import Metrics
from forerun.snapshots.cache import NodeCache
from forerun.snapshots.engine.state import Bounds
from forerun.snapshots.engine.values import Inline
from forerun.snapshots.log import CommitLog
from forerun.snapshots.objects import DataLoss
from forerun.snapshots.tenant import Room, Tenant, open_tenant
from forerun.snapshots.tenants import Tenants

BOUNDS = Bounds(
    branches_max=10,
    branch_max_bytes=10**9,
    branches_max_bytes=10**9,
    branch_idle_seconds=1e9,
    line_max_bytes=10**9,
    line_retention_seconds=1e9,
)


def opened(folder: Path, *, grace_seconds: float = -3600.0, bounds: Bounds = BOUNDS) -> Tenant:
    room = Room(tenant_max_bytes=10**9, blob_max_bytes=10**9, grace_seconds=grace_seconds)
    return open_tenant(folder, bounds=bounds, room=room, clock=SystemClock(), cache=NodeCache(1))()


async def write(tenant: Tenant, branch: str, data: bytes = b"x" * 1_000, *, base: str = "") -> None:
    tenant.fork(branch, base)
    await tenant.write(branch, [("key", Inline(data))])


async def one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_a_commit_whose_caller_goes_away_is_done(tmp_path: Path) -> None:
    tenant = opened(tmp_path)
    await write(tenant, "b")
    commit = asyncio.create_task(tenant.commit("b", "line"))
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    await tenant.close()
    version = tenant.head("line")
    assert version
    assert await tenant.commit("b", "line") == version
    assert opened(tmp_path).head("line") == version


@pytest.mark.parametrize("written", ["nothing", "half", "all"])
async def test_after_a_failed_append_the_disk_decides_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    tenant = opened(tmp_path)
    await write(tenant, "first")
    first = await tenant.commit("first", "line")
    path, real = tmp_path / "commits.log", CommitLog.append

    def failing(self: CommitLog, record: bytes) -> None:
        with path.open("ab") as file:
            file.write({"nothing": b"", "half": record[: len(record) // 2], "all": record}[written])
        monkeypatch.setattr(CommitLog, "append", real)
        raise ResourceExhausted(ErrorReason.STORAGE_UNAVAILABLE, "full")

    monkeypatch.setattr(CommitLog, "append", failing)
    await write(tenant, "second", b"second", base=first)
    with pytest.raises(ResourceExhausted):
        await tenant.commit("second", "line")
    assert tenant.head("line") == first
    second = await tenant.commit("second", "line")
    assert tenant.head("line") == second
    assert await tenant.read(branch=None, version=second, key="key") == b"second"
    assert opened(tmp_path).head("line") == second
    assert len(path.read_bytes().splitlines()) == 2


async def test_a_full_disk_refuses_the_commit_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = opened(tmp_path)
    await write(tenant, "b")
    real = os.fsync

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ResourceExhausted, match="data_dir"):
        await tenant.commit("b", "line")
    monkeypatch.setattr("os.fsync", real)
    assert tenant.head("line") == ""
    assert not [path for path in (tmp_path / "objects").iterdir() if path.name.startswith(".")]
    assert await tenant.commit("b", "line")


async def test_a_reader_gets_its_blob_whole_although_it_is_collected_meanwhile(tmp_path: Path) -> None:
    tenant = opened(tmp_path)
    body = bytes(index % 251 for index in range(3_000_000))
    blob = await tenant.put_blob(one(body))
    reading = tenant.get_blob(blob.digest)
    got = [await anext(reading)]
    assert (await tenant.collect(dry_run=False)).objects == 0
    got += [chunk async for chunk in reading]
    assert b"".join(got) == body
    assert (await tenant.collect(dry_run=False)).objects > 90


async def test_what_was_just_stored_or_used_is_not_collected(tmp_path: Path) -> None:
    tenant = opened(tmp_path, grace_seconds=600.0)
    blob = await tenant.put_blob(one(b"x" * 1_000))
    old = tmp_path / "objects" / blob.digest
    assert (await tenant.collect(dry_run=False)).objects == 0
    os.utime(old, (1.0, 1.0))
    await write(tenant, "b")
    await tenant.write("b", [("blob", blob)])
    tenant.discard("b")
    assert (await tenant.collect(dry_run=False)).objects == 0
    os.utime(old, (1.0, 1.0))
    assert (await tenant.collect(dry_run=False)).objects == 1


async def test_damage_stops_a_collection_before_it_removes_anything(tmp_path: Path) -> None:
    tenant = opened(tmp_path)
    await write(tenant, "b")
    version = await tenant.commit("b", "line")
    await tenant.put_blob(one(b"unused"))
    await write(tenant, "c", b"y" * 1_000, base=version)
    await tenant.commit("c", "line")
    objects = sorted((tmp_path / "objects").iterdir())
    for path in objects:
        if path.stat().st_size < 200:
            path.write_bytes(b"damaged")
    with pytest.raises(DataLoss):
        await opened(tmp_path).collect(dry_run=False)
    assert sorted((tmp_path / "objects").iterdir()) == objects


async def test_a_line_that_rests_for_long_goes_and_gives_its_room_back(tmp_path: Path) -> None:
    bounds = Bounds(
        branches_max=10,
        branch_max_bytes=10**9,
        branches_max_bytes=10**9,
        branch_idle_seconds=1e9,
        line_max_bytes=10**9,
        line_retention_seconds=1e-6,
    )
    tenant = opened(tmp_path, bounds=bounds)
    await write(tenant, "b")
    version = await tenant.commit("b", "line")
    tenant.fork("open", version)
    assert (await tenant.collect(dry_run=False)).objects == 0
    assert tenant.head("line") == ""
    assert await tenant.read(branch="open", version=None, key="key") == b"x" * 1_000
    tenant.discard("open")
    assert (await tenant.collect(dry_run=False)).objects == 2
    assert (tmp_path / "commits.log").read_bytes() == b""
    assert tenant.size_bytes == 0


def all_tenants(folder: Path) -> Tenants:
    room = Room(tenant_max_bytes=10**9, blob_max_bytes=10**9, grace_seconds=1.0)
    return Tenants(
        folder,
        lambda path: open_tenant(path, bounds=BOUNDS, room=room, clock=SystemClock(), cache=NodeCache(1)),
        metrics=Metrics("snapshots"),
    )


def folders(folder: Path) -> int:
    return sum(entry.is_dir() for entry in os.scandir(folder))


async def test_a_folder_serves_one_process_at_a_time(tmp_path: Path) -> None:
    first, second = all_tenants(tmp_path), all_tenants(tmp_path)
    await first.start()
    with pytest.raises(FailedPrecondition, match="data_dir"):
        await second.start()
    await first.stop(1.0)
    await second.start()
    await second.stop(1.0)


async def test_a_damaged_tenant_does_not_stop_the_others(tmp_path: Path) -> None:
    tenants = all_tenants(tmp_path)
    await tenants.start()
    long_name = "tenant/" * 60
    for name in ("good", "bad", "../outside", long_name):
        tenant = await tenants.tenant(name)
        await write(tenant, "b", name.encode())
        await tenant.commit("b", "line")
    await tenants.stop(1.0)
    assert folders(tmp_path) == 4
    log = tmp_path / "bad" / "commits.log"
    log.write_bytes(b"?" + log.read_bytes()[1:])
    again = all_tenants(tmp_path)
    await again.start()
    with pytest.raises(DataLoss):
        await again.tenant("bad")
    for name in ("good", "../outside", long_name):
        tenant = await again.tenant(name)
        assert await tenant.read(branch=None, version=tenant.head("line"), key="key") == name.encode()
    await again.collect()
    await again.stop(1.0)
