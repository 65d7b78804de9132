"""What every service's `build()` begins with: its ports, made from settings and replaceable for the simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun.runtime.app import Callbacks, Part
from forerun.runtime.auth import Authenticator, CallToken
from forerun.runtime.clock import Clock, SystemClock
from forerun.runtime.ids import Ids, SystemIds
from forerun.runtime.metrics import Metrics, MetricsServer
from forerun.runtime.network import Network, NetworkOptions
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.settings import ServiceSettings, read_secret
from forerun.runtime.tracing import Tracing, otlp_exporter


@dataclass(frozen=True, slots=True, kw_only=True)
class Chassis:
    """The ports of one process.

    Attributes:
        clock: Tells the time.
        ids: Makes ids and random draws.
        metrics: Counts.
        tracing: Makes spans.
        network: Serves and calls gRPC.
        authenticator: Who decides on callers.
    """

    clock: Clock
    ids: Ids
    metrics: Metrics
    tracing: Tracing
    network: Network
    authenticator: Authenticator


MakeNetwork = Callable[[Inbound, CallToken | None, NetworkOptions], Network]


def make_chassis(
    settings: ServiceSettings,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    make_network: MakeNetwork | None = None,
) -> Chassis:
    """Makes the ports; what is given is used instead.

    Args:
        settings: Those of the service.
        clock: A virtual clock in the simulation.
        ids: Seeded ids in the simulation.
        make_network: Makes a `MemoryNetwork` in the simulation; guard, token and limits are the production ones.

    Raises:
        FailedPrecondition: a file with tokens cannot be used.
    """
    service = settings.service()
    clock = clock or SystemClock()
    metrics = Metrics(service)
    exporter = otlp_exporter(settings.otlp_endpoint) if settings.otlp_endpoint else None
    tracing = Tracing(service, exporter, sample_ratio=settings.trace_sample_ratio, clock=clock)
    internal = None if settings.internal_token_file is None else read_secret(settings.internal_token_file)
    authenticator = Authenticator(clock, token_file=settings.token_file, internal_token=internal)
    inbound = Inbound(
        authenticator=authenticator,
        metrics=metrics,
        tracing=tracing,
    )
    network = (make_network or _production_network(settings))(
        inbound,
        None if internal is None else CallToken(internal),
        NetworkOptions(max_connection_age_seconds=settings.max_connection_age_seconds),
    )
    return Chassis(
        clock=clock,
        ids=ids or SystemIds(clock),
        metrics=metrics,
        tracing=tracing,
        network=network,
        authenticator=authenticator,
    )


def _production_network(settings: ServiceSettings) -> MakeNetwork:
    def make(inbound: Inbound, token: CallToken | None, options: NetworkOptions) -> Network:
        return GrpcNetwork(
            inbound, token=token, options=options, tls=settings.tls(), health_address=settings.health_address
        )

    return make


def chassis_parts(chassis: Chassis, settings: ServiceSettings, *, expose_metrics: bool = True) -> list[Part]:
    """The parts that start first and stop last: the flush of spans, the metrics endpoint, the channels.

    Args:
        chassis: The ports.
        settings: Those of the service.
        expose_metrics: False in the simulation, which has no sockets.
    """
    tracing, network = chassis.tracing, chassis.network
    parts = [Part("tracing", Callbacks(stop=tracing.close), stop_seconds=3.0)]
    if expose_metrics:
        parts.append(Part("metrics", MetricsServer(chassis.metrics, settings.metrics_address), stop_seconds=2.0))

    async def close_channels(_: float) -> None:
        await network.close()

    parts.append(Part("channels", Callbacks(stop=close_channels), stop_seconds=2.0))
    return parts
