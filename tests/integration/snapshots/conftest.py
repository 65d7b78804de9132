from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from forerun.v1 import snapshot_pb2_grpc
from tests.integration.snapshots.client import Client
from tests.integration.snapshots.processes import Service, as_service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A running snapshots service; what is unused is collected at once."""
    folder = tmp_path_factory.mktemp("snapshots")
    running = Service("snapshots", {"data_dir": str(folder / "data"), "grace_seconds": "0.000001"}, folder)
    await running.start()
    yield running
    await running.kill()


@pytest_asyncio.fixture(loop_scope="module")
async def client(service: Service, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client with a tenant of its own."""
    tenant = request.node.name.removeprefix("test_")[:40]
    async with grpc.aio.insecure_channel(service.address) as channel:
        yield Client(snapshot_pb2_grpc.SnapshotServiceStub(channel), as_service(tenant), tenant)


@pytest.fixture
def folder(service: Service, client: Client) -> Path:
    """Where the client's tenant lies on disk."""
    return Path(service.settings["data_dir"]) / client.tenant
