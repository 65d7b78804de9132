"""The snapshots service as a process, over gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from forerun.runtime.errors import ErrorReason
from forerun.v1 import snapshot_pb2 as pb
from forerun.v1 import snapshot_pb2_grpc
from tests.integration.snapshots.client import Client, refused, refused_with
from tests.integration.snapshots.processes import Service, as_service, as_user

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_life_of_a_line(client: Client) -> None:
    await client.written("one", "", a=b"1", empty=b"", null=b"null", gone=b"x")
    first = await client.commit("one")
    assert await client.commit("one") == first
    await client.written("two", first, a=b"2", gone=None, new=b"n" * 100_000)
    assert await client.value(first, "a") == b"1"
    assert (await client.read("a", branch="two")).value == b"2"
    second = await client.commit("two")
    assert await client.head() == second
    assert [await client.value(second, key) for key in ("a", "empty", "null", "gone")] == [b"2", b"", b"null", None]
    assert await client.value(second, "new") == b"n" * 100_000
    assert await client.diff(first, second) == [
        ("a", pb.DIFF_KIND_CHANGED), ("gone", pb.DIFF_KIND_DELETED), ("new", pb.DIFF_KIND_ADDED),
    ]  # fmt: skip


async def test_blobs_travel_in_chunks_and_unused_ones_are_collected(client: Client) -> None:
    body = bytes(index % 251 for index in range(3_000_000))
    put = await client.put(body[:1_000_000], body[1_000_000:])
    assert put.size_bytes == len(body)
    got = await client.get(put.digest)
    assert b"".join(got) == body
    assert max(map(len, got)) < 2 * 2**20
    await client.fork("b")
    assert await client.write("b", pb.Change(key="blob", blob=put.digest)) == len("blob") + len(body)
    unused = await client.put(b"unused")
    assert await client.collect(dry_run=True) == (1, 6)
    assert await client.collect() == (1, 6)
    gone = await refused(client.get(unused.digest))
    assert (gone.code, gone.reason) == (grpc.StatusCode.NOT_FOUND, ErrorReason.SNAPSHOT_NOT_FOUND)
    read = await client.read("blob", version=await client.commit("b"))
    assert (read.found, read.value, read.blob) == (True, b"", put.digest)


async def test_refusals_have_their_documented_codes(client: Client) -> None:
    await client.written("a", "", winner=b"A")
    await client.written("b", "", winner=b"B")
    first = await client.commit("a")
    conflict = await refused(client.commit("b"))
    assert (conflict.code, conflict.reason) == (grpc.StatusCode.ABORTED, ErrorReason.MERGE_CONFLICT)
    assert (conflict.metadata["branches"], conflict.metadata["keys"]) == ("a,b", "winner")
    assert await refused_with(client.fork("b", first)) is grpc.StatusCode.ALREADY_EXISTS
    assert await refused_with(client.fork("c", "sha256:no")) is grpc.StatusCode.NOT_FOUND
    for change in (
        pb.Change(key="k"),
        pb.Change(key="k", deleted=False),
        pb.Change(key="", value=b""),
        pb.Change(key="k", blob="x"),
    ):
        both = client.write("b", pb.Change(key="applied", value=b""), change)
        assert await refused_with(both) is grpc.StatusCode.INVALID_ARGUMENT
    assert not (await client.read("applied", branch="b")).found
    await client.discard("b")
    await client.discard("b")
    assert await refused_with(client.commit("b")) is grpc.StatusCode.NOT_FOUND


async def test_tenants_see_nothing_of_each_other(client: Client) -> None:
    await client.written("b", "", key=b"secret")
    version = await client.commit("b")
    put = await client.put(b"secret blob" * 100)
    for other in (client.of(as_user("other")), client.of(as_service("somebody else"))):
        assert await refused_with(other.value(version, "key")) is grpc.StatusCode.NOT_FOUND
        assert await other.head() == ""
        assert await refused_with(other.get(put.digest)) is grpc.StatusCode.NOT_FOUND
    assert await client.value(version, "key") == b"secret"
    assert await refused_with(client.of(as_service()).head()) is grpc.StatusCode.PERMISSION_DENIED
    assert await refused_with(client.of(as_user("unknown")).head()) is grpc.StatusCode.UNAUTHENTICATED


async def test_twenty_concurrent_increments_end_at_twenty(client: Client) -> None:
    async def increment(who: int) -> None:
        for attempt in range(100):
            base = await client.head()
            count = int(await client.value(base, "count") or b"0")
            branch = f"{who}/{attempt}"
            await client.written(branch, base, count=b"%d" % (count + 1))
            try:
                await client.commit(branch)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.ABORTED
                await client.discard(branch)
            else:
                return
        raise AssertionError("retries used up")

    await asyncio.gather(*(increment(who) for who in range(20)))
    assert await client.value(await client.head(), "count") == b"20"


async def test_damage_is_data_loss_and_nothing_damaged_is_handed_out(client: Client, folder: Path) -> None:
    await client.written("b", "", small=b"s", large=b"l" * 5_000)
    version = await client.commit("b")
    put = await client.put(b"b" * 6_000)
    for path in (folder / "objects").iterdir():
        if path.stat().st_size in (5_000, 6_000):
            path.write_bytes(b"?" + path.read_bytes()[1:])
    assert (await refused(client.value(version, "large"))).reason is ErrorReason.SNAPSHOT_CORRUPT
    assert await refused_with(client.value(version, "large")) is grpc.StatusCode.DATA_LOSS
    assert await refused_with(client.get(put.digest)) is grpc.StatusCode.DATA_LOSS
    assert await client.value(version, "small") == b"s"


async def test_a_restart_keeps_commits_and_drops_what_was_not_committed(service: Service, client: Client) -> None:
    await client.written("done", "", total=b"1")
    version = await client.commit("done")
    await client.written("failed", version, total=b"99")
    assert await service.stop() == 0
    await service.start()
    async with grpc.aio.insecure_channel(service.address) as channel:
        again = Client(snapshot_pb2_grpc.SnapshotServiceStub(channel), client.metadata, client.tenant)
        assert await again.commit("done") == version
        await again.fork("failed", version)
        assert await again.value(await again.commit("failed"), "total") == b"1"
