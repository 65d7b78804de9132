"""gRPC as the platform uses it: process pools beside a server (E1), state of any size (E4)."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from forerun.cli.virtual import TENANT
from forerun.core import limits
from forerun.runtime.errors import ErrorReason, ResourceExhausted
from forerun.runtime.network import rpc_errors
from forerun.v1 import snapshot_pb2 as pb
from forerun.v1 import snapshot_pb2_grpc
from tests.fault.runtime.test_process import Start, start
from tests.integration.cases.conftest import Play, Stage, policy, tool
from tests.integration.snapshots.client import Client

__all__ = ["start"]  # a fixture

SIZES = [int(megabytes * limits.MIB) for megabytes in (3.9, 4.0, 4.1, 30)]


async def test_a_process_pool_calls_grpc_fifty_times_beside_a_running_server(start: Start) -> None:
    service = await start()
    assert await service.once(b"pool token") == b"from the pool"  # one call first, and the pool's process
    for _ in range(50):
        async with asyncio.timeout(2):
            assert await service.once(b"pool token") == b"from the pool"


def test_state_of_any_size_travels_in_chunks_or_gives_one_error(play: Play) -> None:
    async def scene(s: Stage) -> None:
        stub = snapshot_pb2_grpc.SnapshotServiceStub(s.platform.service_channel("snapshots"))
        client = Client(stub, (), TENANT)
        await client.fork("branch")
        for number, size in enumerate(SIZES):
            body = bytes([number]) * size
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            chunks = [body[start : start + limits.CHUNK_BYTES] for start in range(0, size, limits.CHUNK_BYTES)]
            assert (await client.put(*chunks)).digest == digest
            await client.write("branch", pb.Change(key=f"blob-{number}", blob=digest))
            if size < limits.MESSAGE_BYTES - 64 * limits.KIB:
                await client.write("branch", pb.Change(key=f"value-{number}", value=body))
            else:
                with pytest.raises(ResourceExhausted) as caught, rpc_errors():
                    await client.write("branch", pb.Change(key=f"value-{number}", value=body))
                assert caught.value.reason is ErrorReason.MESSAGE_TOO_LARGE
                assert int(caught.value.metadata["size_bytes"]) >= size
                assert int(caught.value.metadata["limit_bytes"]) == limits.MESSAGE_BYTES
        version = await client.commit("branch")
        assert await client.value(version, "value-0") == bytes([0]) * SIZES[0]
        for number, size in enumerate(SIZES):
            blob = (await client.read(f"blob-{number}", version=version)).blob
            parts = await client.get(blob)
            assert b"".join(parts) == bytes([number]) * size
            assert max(map(len, parts)) <= limits.MESSAGE_BYTES

    play(scene, policy(tool("get", "READ", reads=["o/{id}"])))
