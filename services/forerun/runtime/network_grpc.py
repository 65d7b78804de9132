"""The network of production: grpc.aio over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from forerun.runtime.auth import CallToken
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.network import NetworkOptions, Register, ServerHandle
from forerun.runtime.network_health import HealthServicer
from forerun.runtime.network_inbound import GuardedServer, Inbound
from forerun.runtime.network_outbound import OutboundChannel

_Options = list[tuple[str, int | str]]

# Time for handlers that the end of the grace cancelled to clean up and to answer.
_CUT_SECONDS: Final = 0.5
# How long new calls get a typed refusal before grpc tears the connections: who hears it knows that nothing was started,
# and stays away from then on.
_REFUSING_SECONDS: Final = 0.3

_HEALTH_SERVICE: Final[str] = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Encryption(Protocol):
    """Certificates of a process; see `Tls`."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Those of a server."""
        ...

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Those of a channel that is made now."""
        ...

    def channel_options(self) -> list[tuple[str, int | str]]:
        """Arguments of a channel."""
        ...


class GrpcNetwork:
    """Serves and calls over sockets. Used by one event loop; never carried across a fork.

    Without certificates connections are not encrypted, which is for loopback. Every call proves its caller with a
    token either way.

    Args:
        inbound: What guards the handlers.
        token: The credential of outgoing calls.
        options: Limits and timers, the same for both sides.
        tls: Certificates of this process, for what it serves and for what it calls.
        health_address: `host:port` of a second server that serves health alone and is never encrypted, for probes that
            know no certificates; None: health is served beside everything else only.
    """

    def __init__(
        self,
        inbound: Inbound,
        *,
        token: CallToken | None = None,
        options: NetworkOptions | None = None,
        tls: Encryption | None = None,
        health_address: str | None = None,
    ) -> None:
        self._inbound = inbound
        self._tls = tls
        self._health_address = health_address
        self._token = token
        self._options = options or NetworkOptions()
        self._channels: dict[str, OutboundChannel] = {}

    async def serve(
        self, name: str, target: str, register: Sequence[Register], *, services: Sequence[str]
    ) -> ServerHandle:
        """Listens on `target`; see `Network.serve`."""
        credentials = None if self._tls is None else self._tls.server_credentials()
        server = grpc.aio.server(options=server_options(self._options))
        guarded = GuardedServer(server, self._inbound, max_message_bytes=self._options.max_message_bytes)
        for add in register:
            add(guarded)
        # Probes and people with grpcurl have no token, so these two stand outside of the guard.
        health = HealthServicer(services)
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        reflection.enable_server_reflection([*services, _HEALTH_SERVICE, reflection.SERVICE_NAME], server)
        port = _listen(server, name, target, "listen_address", credentials)
        probed = None
        if self._health_address is not None:
            probed = grpc.aio.server(options=server_options(self._options))
            health_pb2_grpc.add_HealthServicer_to_server(health, probed)
            _listen(probed, name, self._health_address, "health_address", None)
            await probed.start()
        await server.start()
        return _GrpcServerHandle(server, guarded, health, _bound_address(target, port), probed)

    def channel(self, target: str) -> grpc.aio.Channel:
        """The channel to `target`; see `Network.channel`."""
        channel = self._channels.get(target)
        if channel is None:
            inner = self._open(target)
            channel = self._channels[target] = OutboundChannel(
                inner, self._token, max_message_bytes=self._options.max_message_bytes
            )
        return channel

    def _open(self, target: str) -> grpc.aio.Channel:
        arguments = channel_options(self._options)
        if self._tls is None:
            return grpc.aio.insecure_channel(target, options=arguments)
        return grpc.aio.secure_channel(
            target, self._tls.channel_credentials(), options=[*arguments, *self._tls.channel_options()]
        )

    async def close(self) -> None:
        """Closes all channels; calls that still run on them are cancelled."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


class _GrpcServerHandle:
    """A listening server with its health."""

    def __init__(
        self,
        server: grpc.aio.Server,
        guarded: GuardedServer,
        health: HealthServicer,
        address: str,
        probed: grpc.aio.Server | None,
    ) -> None:
        self._server = server
        self._probed = probed
        self._guarded = guarded
        self._health = health
        self._address = address
        self._stopping: asyncio.Future[None] | None = None

    @property
    def address(self) -> str:
        return self._address

    async def set_serving(self, serving: bool) -> None:
        self._health.set_serving(serving)

    async def stop(self, grace_seconds: float) -> None:
        self._health.close()
        # grpc's own stop cuts what runs, and what arrives meanwhile, without a status of ours. So it comes last.
        self._guarded.refuse()
        begun_at = asyncio.get_running_loop().time()
        await self._guarded.until_idle(grace_seconds)
        spent = asyncio.get_running_loop().time() - begun_at
        await asyncio.sleep(max(0.0, min(_REFUSING_SECONDS, grace_seconds) - spent))
        self._guarded.interrupt()
        # Kept here: a caller that is cancelled leaves it running and calls again with less grace.
        self._stopping = self._stopping or asyncio.ensure_future(self._stop_servers())
        await asyncio.shield(self._stopping)

    async def _stop_servers(self) -> None:
        await self._server.stop(_CUT_SECONDS)
        if self._probed is not None:
            await self._probed.stop(_CUT_SECONDS)


def _listen(
    server: grpc.aio.Server, name: str, target: str, setting: str, credentials: grpc.ServerCredentials | None
) -> int:
    """Takes an address; the port that it got.

    Raises:
        FailedPrecondition: it cannot be taken.
    """
    try:
        return server.add_insecure_port(target) if credentials is None else server.add_secure_port(target, credentials)
    except RuntimeError as error:
        raise FailedPrecondition(
            ErrorReason.SETTING_INVALID,
            f"{name} cannot listen on {target!r}; set {setting} to host:port of a free port",
            metadata={"setting": setting},
        ) from error


def server_options(options: NetworkOptions) -> _Options:
    """The arguments of a server."""
    arguments: _Options = [
        *_shared_options(options),
        # Two servers on one port would share its connections at random; a taken port has to be an error.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(options.tolerated_ping_seconds)),
    ]
    if options.max_connection_age_seconds is not None:
        arguments += [
            ("grpc.max_connection_age_ms", _milliseconds(options.max_connection_age_seconds)),
            ("grpc.max_connection_age_grace_ms", _milliseconds(options.max_connection_age_grace_seconds)),
        ]
    return arguments


def channel_options(options: NetworkOptions) -> _Options:
    """The arguments of a channel."""
    return [
        *_shared_options(options),
        # With a headless service each replica is an address; without this a client keeps to the first one.
        ("grpc.lb_policy_name", "round_robin"),
        # A pool of its own per channel: two networks of one process must not share a broken connection.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", _milliseconds(options.reconnect_initial_seconds)),
        ("grpc.min_reconnect_backoff_ms", _milliseconds(options.reconnect_initial_seconds)),
        ("grpc.max_reconnect_backoff_ms", _milliseconds(options.reconnect_max_seconds)),
        ("grpc.dns_min_time_between_resolutions_ms", _milliseconds(options.reconnect_max_seconds)),
        # One layer retries, and it is not this one: only it knows which calls may be repeated.
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def _shared_options(options: NetworkOptions) -> _Options:
    return [
        # Senders of ours check sizes themselves (guard and outbound channel): where core refuses to send, a call ends
        # as an internal error. A stream of requests that sends too much is refused by the receiver, with both numbers.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.keepalive_time_ms", _milliseconds(options.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(options.keepalive_timeout_seconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Pings of idle session streams must not run out.
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _bound_address(target: str, port: int) -> str:
    if target.startswith("unix:"):
        return target
    return f"{target.rpartition(':')[0]}:{port}"
