"""Storage follows what changes, not what there is."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ResourceExhausted
from forerun.snapshots.cache import NodeCache
from forerun.snapshots.engine.state import Bounds
from forerun.snapshots.engine.values import Inline
from forerun.snapshots.tenant import Room, Tenant, open_tenant

STEP_BYTES = 20_000


def opened(folder: Path, *, line_max_bytes: int = 10**9, tenant_max_bytes: int = 10**9) -> Tenant:
    bounds = Bounds(
        branches_max=10,
        branch_max_bytes=10**9,
        branches_max_bytes=10**9,
        branch_idle_seconds=1e9,
        line_max_bytes=line_max_bytes,
        line_retention_seconds=1e9,
    )
    room = Room(tenant_max_bytes=tenant_max_bytes, blob_max_bytes=10**9, grace_seconds=1e9)
    return open_tenant(folder, bounds=bounds, room=room, clock=SystemClock(), cache=NodeCache(100))()


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is not tried here, and hundreds of commits would wait for the disk."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


def fresh(step: int) -> bytes:
    return hashlib.shake_128(b"%d" % step).digest(STEP_BYTES)


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def one(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.usefixtures("quick_disk")
async def test_three_hundred_steps_of_new_keys_store_less_than_three_times_their_content(tmp_path: Path) -> None:
    tenant = opened(tmp_path)
    head = ""
    for step in range(300):
        tenant.fork(f"b{step}", head)
        await tenant.write(f"b{step}", [(f"step {step}", Inline(fresh(step)))])
        head = await tenant.commit(f"b{step}", "line")
    assert stored_bytes(tmp_path) < 3 * 300 * STEP_BYTES
    again = opened(tmp_path)
    for step in (0, 150, 299):
        assert await again.read(branch=None, version=head, key=f"step {step}") == fresh(step)


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("blob", [False, True])
async def test_one_history_that_grows_stores_less_than_three_times_its_content(tmp_path: Path, blob: bool) -> None:
    tenant = opened(tmp_path)
    head, history = "", b""
    for step in range(100):
        history += fresh(step)
        value = await tenant.put_blob(one(history)) if blob else Inline(history)
        tenant.fork(f"b{step}", head)
        await tenant.write(f"b{step}", [("history", value)])
        head = await tenant.commit(f"b{step}", "line")
    assert stored_bytes(tmp_path) < 3 * 100 * STEP_BYTES


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("blob", [False, True])
async def test_a_line_above_its_budget_is_refused_and_others_are_not(tmp_path: Path, blob: bool) -> None:
    tenant = opened(tmp_path, line_max_bytes=3 * STEP_BYTES)
    head = ""
    for step in range(2):
        value = await tenant.put_blob(one(fresh(step))) if blob else Inline(fresh(step))
        tenant.fork(f"b{step}", head)
        await tenant.write(f"b{step}", [("key", value)])
        head = await tenant.commit(f"b{step}", "line")
    value = await tenant.put_blob(one(fresh(3))) if blob else Inline(fresh(3))
    tenant.fork("over", head)
    await tenant.write("over", [("key", value)])
    with pytest.raises(ResourceExhausted, match="line_max_bytes"):
        await tenant.commit("over", "line")
    assert tenant.head("line") == head
    tenant.fork("elsewhere", "")
    await tenant.write("elsewhere", [("key", value)])
    await tenant.commit("elsewhere", "another line")


@pytest.mark.usefixtures("quick_disk")
async def test_a_tenant_above_its_room_can_neither_commit_nor_upload(tmp_path: Path) -> None:
    tenant = opened(tmp_path, tenant_max_bytes=STEP_BYTES)
    tenant.fork("b", "")
    await tenant.write("b", [("key", Inline(fresh(1)))])
    with pytest.raises(ResourceExhausted, match="tenant_max_bytes"):
        await tenant.commit("b", "line")
    with pytest.raises(ResourceExhausted, match="tenant_max_bytes"):
        await tenant.put_blob(one(fresh(1) + b"x"))
    assert tenant.head("line") == ""
