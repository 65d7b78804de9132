"""The gRPC face of the snapshots: messages to calls and back. Every call acts within the tenant of its credential."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc.aio

from forerun.core import limits
from forerun.runtime import metrics_table as m
from forerun.runtime.auth import current_caller
from forerun.runtime.errors import ErrorReason, InvalidArgument, ResourceExhausted
from forerun.runtime.metrics import Metrics
from forerun.snapshots.engine.tree import Difference
from forerun.snapshots.engine.values import Inline, Stored, Value
from forerun.snapshots.tenant import Tenant
from forerun.snapshots.tenants import Tenants
from forerun.v1 import snapshot_pb2 as pb
from forerun.v1 import snapshot_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]

_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_KINDS: Final = {
    Difference.ADDED: pb.DIFF_KIND_ADDED,
    Difference.CHANGED: pb.DIFF_KIND_CHANGED,
    Difference.DELETED: pb.DIFF_KIND_DELETED,
}
# Room for the rest of the message beside the values.
_ENVELOPE_BYTES: Final = 64 * limits.KIB
_DIFFERENCE_BYTES: Final = 16


class SnapshotServicer(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Serves `SnapshotService`.

    Args:
        tenants: The snapshots.
        metrics: Where operations are counted and timed.
    """

    def __init__(self, tenants: Tenants, metrics: Metrics) -> None:
        self._tenants = tenants
        self._metrics = metrics

    async def Fork(self, request: pb.ForkRequest, context: _Context) -> pb.ForkResponse:  # noqa: N802
        """Opens a branch."""
        with self._measured("fork"):
            tenant = await self._tenant()
            return pb.ForkResponse(base=tenant.fork(request.branch, request.version))

    async def Write(self, request: pb.WriteRequest, context: _Context) -> pb.WriteResponse:  # noqa: N802
        """Writes values to a branch, all or none."""
        with self._measured("write"):
            changes = [(change.key, _change(change)) for change in request.changes]
            tenant = await self._tenant()
            return pb.WriteResponse(branch_bytes=await tenant.write(request.branch, changes))

    async def Read(self, request: pb.ReadRequest, context: _Context) -> pb.ReadResponse:  # noqa: N802
        """Reads a value of a branch or version."""
        with self._measured("read"):
            source = request.WhichOneof("source")
            if source is None:
                raise _invalid("source", "name a branch or a version")
            branch = request.branch if source == "branch" else None
            version = request.version if source == "version" else None
            tenant = await self._tenant()
            found = await tenant.read(branch=branch, version=version, key=request.key)
        if found is None:
            return pb.ReadResponse()
        if isinstance(found, str):
            return pb.ReadResponse(found=True, blob=f"sha256:{found}")
        return pb.ReadResponse(found=True, value=found)

    async def Commit(self, request: pb.CommitRequest, context: _Context) -> pb.CommitResponse:  # noqa: N802
        """Makes a branch the new version of a line."""
        with self._measured("commit"):
            tenant = await self._tenant()
            return pb.CommitResponse(version=await tenant.commit(request.branch, request.line))

    async def Discard(self, request: pb.DiscardRequest, context: _Context) -> pb.DiscardResponse:  # noqa: N802
        """Drops a branch."""
        with self._measured("discard"):
            tenant = await self._tenant()
            tenant.discard(request.branch)
            return pb.DiscardResponse()

    async def Diff(self, request: pb.DiffRequest, context: _Context) -> pb.DiffResponse:  # noqa: N802
        """Compares two versions."""
        with self._measured("diff"):
            tenant = await self._tenant()
            found = await tenant.diff(request.from_version, request.to_version)
            size = sum(len(key.encode()) + _DIFFERENCE_BYTES for key, _ in found)
            if size > limits.MESSAGE_BYTES:
                raise ResourceExhausted(
                    ErrorReason.MESSAGE_TOO_LARGE,
                    f"{len(found)} differences do not fit into one message of {limits.MESSAGE_BYTES} bytes; "
                    "compare versions that are closer to each other",
                    metadata={"differences": str(len(found)), "limit_bytes": str(limits.MESSAGE_BYTES)},
                )
        return pb.DiffResponse(differences=[pb.Difference(key=key, kind=_KINDS[kind]) for key, kind in found])

    async def Head(self, request: pb.HeadRequest, context: _Context) -> pb.HeadResponse:  # noqa: N802
        """The head version of a line."""
        with self._measured("read"):
            tenant = await self._tenant()
            return pb.HeadResponse(version=tenant.head(request.line))

    async def PutBlob(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PutBlobRequest], context: _Context
    ) -> pb.PutBlobResponse:
        """Stores a large value."""
        with self._measured("put"):
            tenant = await self._tenant()
            stored = await tenant.put_blob(request.data async for request in request_iterator)
            return pb.PutBlobResponse(digest=f"sha256:{stored.digest}", size_bytes=stored.size_bytes)

    async def GetBlob(self, request: pb.GetBlobRequest, context: _Context) -> AsyncIterator[pb.GetBlobResponse]:  # noqa: N802
        """Gives a large value back."""
        with self._measured("get"):
            tenant = await self._tenant()
            async for chunk in tenant.get_blob(_digest("digest", request.digest)):
                yield pb.GetBlobResponse(data=chunk)

    async def Collect(self, request: pb.CollectRequest, context: _Context) -> pb.CollectResponse:  # noqa: N802
        """Removes what nothing refers to."""
        with self._measured("collect"):
            tenant = await self._tenant()
            collected = await tenant.collect(dry_run=request.dry_run)
            return pb.CollectResponse(objects=collected.objects, size_bytes=collected.size_bytes)

    async def _tenant(self) -> Tenant:
        return await self._tenants.tenant(current_caller().tenant)

    @contextmanager
    def _measured(self, operation: str) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        started, result = loop.time(), "failed"
        try:
            yield
            result = "ok"
        finally:
            self._metrics.observe(m.SNAPSHOT_SECONDS, loop.time() - started, operation=operation)
            self._metrics.add(m.SNAPSHOT_OPERATIONS, operation=operation, result=result)
            self._tenants.show_size()


def _change(change: pb.Change) -> Value | None:
    kind = change.WhichOneof("change")
    if kind == "value":
        if len(change.value) > limits.MESSAGE_BYTES - _ENVELOPE_BYTES:
            raise _invalid("changes.value", "a value this large could not be read in one message; use PutBlob")
        return Inline(change.value)
    if kind == "blob":
        return Stored(_digest("changes.blob", change.blob), 0, blob=True)
    if kind == "deleted" and change.deleted:
        return None
    raise _invalid("changes", "each change needs a value, a blob, or deleted set to true")


def _digest(field: str, text: str) -> str:
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise _invalid(field, "a digest is sha256: and 64 hexadecimal digits in lower case")
    return match[1]


def _invalid(field: str, message: str) -> InvalidArgument:
    return InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"{field}: {message}", metadata={"field": field})
