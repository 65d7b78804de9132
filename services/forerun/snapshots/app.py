"""Wires the snapshots service."""

from __future__ import annotations

from forerun.runtime.app import App, Callbacks, Part, Served
from forerun.runtime.bus import Bus
from forerun.runtime.chassis import MakeNetwork, chassis_parts, make_chassis
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.tasks import TaskScope
from forerun.snapshots.cache import NodeCache
from forerun.snapshots.engine.state import Bounds
from forerun.snapshots.service import SnapshotServicer
from forerun.snapshots.settings import SnapshotsSettings
from forerun.snapshots.tenant import Room, open_tenant
from forerun.snapshots.tenants import Tenants
from forerun.v1 import snapshot_pb2, snapshot_pb2_grpc

_SERVICE = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].full_name


def build(
    settings: SnapshotsSettings,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    bus: Bus | None = None,
    network: MakeNetwork | None = None,
) -> App:
    """Wires the service; what is given is used instead of the real thing.

    Args:
        settings: What the operator chose.
        clock: Tells the time.
        ids: Makes ids.
        bus: Not used: everything is on the service's own disk. Here so that all services are built alike.
        network: Makes the network on which it listens; without one it is gRPC, with a metrics endpoint beside it.
    """
    chassis = make_chassis(settings, clock=clock, ids=ids, make_network=network)
    bounds = Bounds(
        branches_max=settings.branches_max,
        branch_max_bytes=settings.branch_max_bytes,
        branches_max_bytes=settings.branches_max_bytes,
        branch_idle_seconds=settings.branch_idle_seconds,
        line_max_bytes=settings.line_max_bytes,
        line_retention_seconds=settings.line_retention_seconds,
    )
    room = Room(
        tenant_max_bytes=settings.tenant_max_bytes,
        blob_max_bytes=settings.blob_max_bytes,
        grace_seconds=settings.grace_seconds,
    )
    cache = NodeCache(settings.cached_nodes)
    tenants = Tenants(
        settings.data_dir,
        lambda folder: open_tenant(folder, bounds=bounds, room=room, clock=chassis.clock, cache=cache),
        metrics=chassis.metrics,
    )
    tasks = TaskScope("snapshots", metrics=chassis.metrics)

    async def collect_from_time_to_time() -> None:
        tasks.every(settings.collect_interval_seconds, tenants.collect, name="collect")

    servicer = SnapshotServicer(tenants, chassis.metrics)
    server = Served(
        chassis.network,
        "snapshots",
        settings.listen_address,
        [lambda server: snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(servicer, server)],
        services=[_SERVICE],
    )
    parts = [
        *chassis_parts(chassis, settings, expose_metrics=network is None),
        Part("tenants", tenants, stop_seconds=10.0, start_seconds=300.0),
        Part("collection", Callbacks(start=collect_from_time_to_time, stop=tasks.stop)),
        Part("server", server, stop_seconds=None),
    ]
    return App(service="snapshots", parts=parts, metrics=chassis.metrics, drain_seconds=settings.drain_seconds)
