"""The calls of a snapshots client as the tests make them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass

import grpc.aio
import pytest

from forerun.runtime.errors import ForerunError, from_rpc_error
from forerun.v1 import snapshot_pb2 as pb
from forerun.v1 import snapshot_pb2_grpc
from tests.integration.snapshots.processes import Metadata

SECONDS = 30.0


@dataclass
class Client:
    """A caller with a credential."""

    stub: snapshot_pb2_grpc.SnapshotServiceStub
    metadata: Metadata
    tenant: str

    async def fork(self, branch: str, version: str = "") -> None:
        request = pb.ForkRequest(branch=branch, version=version)
        await self.stub.Fork(request, timeout=SECONDS, metadata=self.metadata)

    async def write(self, branch: str, *changes: pb.Change) -> int:
        request = pb.WriteRequest(branch=branch, changes=changes)
        return (await self.stub.Write(request, timeout=SECONDS, metadata=self.metadata)).branch_bytes

    async def written(self, branch: str, base: str, **values: bytes | None) -> None:
        """A new branch with some values; None deletes."""
        await self.fork(branch, base)
        changes = [
            pb.Change(key=key, deleted=True) if value is None else pb.Change(key=key, value=value)
            for key, value in values.items()
        ]
        await self.write(branch, *changes)

    async def commit(self, branch: str, line: str = "line") -> str:
        request = pb.CommitRequest(branch=branch, line=line)
        return (await self.stub.Commit(request, timeout=SECONDS, metadata=self.metadata)).version

    async def discard(self, branch: str) -> None:
        await self.stub.Discard(pb.DiscardRequest(branch=branch), timeout=SECONDS, metadata=self.metadata)

    async def head(self, line: str = "line") -> str:
        return (await self.stub.Head(pb.HeadRequest(line=line), timeout=SECONDS, metadata=self.metadata)).version

    async def read(self, key: str, *, version: str = "", branch: str | None = None) -> pb.ReadResponse:
        request = pb.ReadRequest(key=key, version=version) if branch is None else pb.ReadRequest(key=key, branch=branch)
        return await self.stub.Read(request, timeout=SECONDS, metadata=self.metadata)

    async def value(self, version: str, key: str) -> bytes | None:
        """A value of a version, or None where there is none."""
        response = await self.read(key, version=version)
        return response.value if response.found else None

    async def diff(self, old: str, new: str) -> list[tuple[str, pb.DiffKind.ValueType]]:
        request = pb.DiffRequest(from_version=old, to_version=new)
        response = await self.stub.Diff(request, timeout=SECONDS, metadata=self.metadata)
        return [(one.key, one.kind) for one in response.differences]

    async def put(self, *parts: bytes) -> pb.PutBlobResponse:
        async def chunks() -> AsyncIterator[pb.PutBlobRequest]:
            for part in parts:
                yield pb.PutBlobRequest(data=part)

        return await self.stub.PutBlob(chunks(), timeout=SECONDS, metadata=self.metadata)

    async def get(self, digest: str) -> list[bytes]:
        request = pb.GetBlobRequest(digest=digest)
        call = self.stub.GetBlob(request, timeout=SECONDS, metadata=self.metadata)
        return [response.data async for response in call]

    async def collect(self, *, dry_run: bool = False) -> tuple[int, int]:
        request = pb.CollectRequest(dry_run=dry_run)
        response = await self.stub.Collect(request, timeout=SECONDS, metadata=self.metadata)
        return response.objects, response.size_bytes

    def of(self, metadata: Metadata, tenant: str = "") -> Client:
        """The same with another credential."""
        return Client(self.stub, metadata, tenant)


async def refused(call: Awaitable[object]) -> ForerunError:
    """The typed error of a call that has to fail."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return from_rpc_error(raised.value)


async def refused_with(call: Awaitable[object]) -> grpc.StatusCode:
    """The status of a call that has to fail."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code()
