"""A network inside one event loop, for the simulation and for tests that need no sockets.

The fabric is the wires that all processes of a simulated installation share; each process has its own `MemoryNetwork`
on it, with its own credential and guard. Faults are put on the wires: refuse, drop, delay, for one target and, if
wanted, for one caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from forerun.runtime.auth import CallToken
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.memory_call import Exchange, Metadata
from forerun.runtime.memory_client import (
    MemoryCall,
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from forerun.runtime.memory_server import MemoryServer
from forerun.runtime.network import NetworkOptions, Register, ServerHandle
from forerun.runtime.network_health import HealthServicer
from forerun.runtime.network_inbound import GuardedServer, Inbound
from forerun.runtime.network_outbound import OutboundChannel

ANYONE = "*"

_REFUSED = "failed to connect to all addresses: connection refused"
_DROPPED = "Socket closed"


class MemoryFabric:
    """The wires between the processes of one simulated installation."""

    def __init__(self) -> None:
        self._servers: dict[str, MemoryServer] = {}
        self._refused: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], float] = {}
        self._next_port = 1
        self._listening = asyncio.Event()

    # -- faults

    def refuse(self, target: str, *, source: str = ANYONE) -> None:
        """New calls to `target` fail as if nobody listened; running ones are not touched."""
        self._refused.add((source, target))

    def drop(self, target: str, *, source: str = ANYONE) -> None:
        """Breaks the connections to `target`: running calls fail at both ends, new ones connect again."""
        server = self._servers.get(target)
        if server is None:
            return
        if source == ANYONE:
            server.drop(_DROPPED)
        else:
            server.drop_from(source, _DROPPED)

    def delay(self, target: str, seconds: float, *, source: str = ANYONE) -> None:
        """Everything of calls to `target` that begin from now on travels for `seconds`, each way."""
        self._delays[source, target] = seconds

    def heal(self, target: str, *, source: str = ANYONE) -> None:
        """Takes refusals and delays back."""
        self._refused.discard((source, target))
        self._delays.pop((source, target), None)
        self._listening.set()

    # -- used by the networks

    def listen(self, target: str, server: MemoryServer) -> str:
        """Puts a server on an address; port 0 takes a free one.

        Raises:
            FailedPrecondition: the address is taken.
        """
        host, _, port = target.rpartition(":")
        if port == "0":
            target, self._next_port = f"{host}:{self._next_port}", self._next_port + 1
        if target in self._servers:
            raise FailedPrecondition(
                ErrorReason.SETTING_INVALID, f"cannot listen on {target!r}: taken", metadata={"address": target}
            )
        self._servers[target] = server
        self._listening.set()
        return target

    def forget(self, target: str, server: MemoryServer) -> None:
        """Takes a server off its address."""
        if self._servers.get(target) is server:
            del self._servers[target]

    def reachable(self, source: str, target: str) -> bool:
        """Whether a new call from `source` to `target` would connect."""
        refused = (source, target) in self._refused or (ANYONE, target) in self._refused
        return target in self._servers and not refused

    async def until_reachable(self, source: str, target: str) -> None:
        """Waits for a server on `target`."""
        while not self.reachable(source, target):
            self._listening.clear()
            await self._listening.wait()

    def travel_seconds(self, source: str, target: str) -> float:
        """How long a message travels."""
        return self._delays.get((source, target), self._delays.get((ANYONE, target), 0.0))

    def deliver(self, exchange: Exchange, target: str) -> None:
        """Brings a new call to whoever listens on `target` when it arrives."""
        if exchange.delay_seconds > 0:
            asyncio.get_running_loop().call_later(exchange.delay_seconds, self._arrive, exchange, target)
        else:
            self._arrive(exchange, target)

    def _arrive(self, exchange: Exchange, target: str) -> None:
        if not self.reachable(exchange.peer, target):
            exchange.fail(grpc.StatusCode.UNAVAILABLE, _REFUSED)
            return
        self._servers[target].accept(exchange)


class MemoryNetwork:
    """One process's access to a fabric.

    Args:
        fabric: The shared wires.
        inbound: What guards the handlers of this process.
        source: Name of this process, the peer that servers see and that faults can single out.
        token: The credential of outgoing calls.
        options: Limits, the same as on a real network.
    """

    def __init__(
        self,
        fabric: MemoryFabric,
        inbound: Inbound,
        *,
        source: str,
        token: CallToken | None = None,
        options: NetworkOptions | None = None,
    ) -> None:
        self._fabric = fabric
        self._inbound = inbound
        self._source = source
        self._token = token
        self._options = options or NetworkOptions()
        self._channels: dict[str, OutboundChannel] = {}

    async def serve(
        self, name: str, target: str, register: Sequence[Register], *, services: Sequence[str]
    ) -> ServerHandle:
        """Listens on `target`; see `Network.serve`."""
        server = MemoryServer(self._options.max_message_bytes)
        guarded = GuardedServer(server, self._inbound, max_message_bytes=self._options.max_message_bytes)
        for add in register:
            add(guarded)
        health = HealthServicer(services)
        unguarded: Any = server  # has the two methods that the generated function uses
        health_pb2_grpc.add_HealthServicer_to_server(health, unguarded)
        return _MemoryServerHandle(self._fabric, server, guarded, health, self._fabric.listen(target, server))

    def channel(self, target: str) -> grpc.aio.Channel:
        """The channel to `target`; see `Network.channel`."""
        channel = self._channels.get(target)
        if channel is None:
            inner = MemoryChannel(self._fabric, self._source, target, self._options)
            channel = self._channels[target] = OutboundChannel(
                inner, self._token, max_message_bytes=self._options.max_message_bytes
            )
        return channel

    async def close(self) -> None:
        """Closes all channels; calls that still run on them are cancelled."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


class _MemoryServerHandle:
    def __init__(
        self, fabric: MemoryFabric, server: MemoryServer, guarded: GuardedServer, health: HealthServicer, address: str
    ) -> None:
        self._fabric = fabric
        self._server = server
        self._guarded = guarded
        self._health = health
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def set_serving(self, serving: bool) -> None:
        self._health.set_serving(serving)

    async def stop(self, grace_seconds: float) -> None:
        self._health.close()
        self._guarded.refuse()
        ends_at = asyncio.get_running_loop().time() + grace_seconds
        try:
            await self._guarded.until_idle(grace_seconds)
            await self._server.stop(max(0.0, ends_at - asyncio.get_running_loop().time()))
        finally:
            self._fabric.forget(self._address, self._server)


class MemoryChannel(grpc.aio.Channel):
    """A channel that generated stubs accept."""

    def __init__(self, fabric: MemoryFabric, source: str, target: str, options: NetworkOptions) -> None:
        self._fabric = fabric
        self._source = source
        self._target = target
        self._options = options
        self._open: dict[int, Exchange] = {}
        self._closed = False

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        """Makes the callable of a unary method."""
        return self._unary_request(method, UnaryUnaryCall, request_serializer, response_deserializer)

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        """Makes the callable of a method with streamed responses."""
        return self._unary_request(method, UnaryStreamCall, request_serializer, response_deserializer)

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        """Makes the callable of a method with streamed requests."""
        return self._stream_request(method, StreamUnaryCall, request_serializer, response_deserializer)

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        """Makes the callable of a method that streams both ways."""
        return self._stream_request(method, StreamStreamCall, request_serializer, response_deserializer)

    async def close(self, grace: float | None = None) -> None:
        """Cancels what still runs after `grace` seconds, and refuses new calls at once."""
        self._closed = True
        if grace and self._open:
            statuses = [asyncio.ensure_future(exchange.status()) for exchange in self._open.values()]
            await asyncio.wait(statuses, timeout=grace)
        for exchange in list(self._open.values()):
            exchange.cancel()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Whether a call would connect."""
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        reachable = self._fabric.reachable(self._source, self._target)
        return grpc.ChannelConnectivity.READY if reachable else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Not offered: memory has no connections of which the state could be watched."""
        raise NotImplementedError("use channel_ready()")

    async def channel_ready(self) -> None:
        """Waits until somebody listens."""
        await self._fabric.until_reachable(self._source, self._target)

    async def __aenter__(self) -> MemoryChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _unary_request(
        self,
        method: str,
        kind: type[UnaryUnaryCall[Any, Any]] | type[UnaryStreamCall[Any, Any]],
        serializer: Any,
        deserializer: Any,
    ) -> Callable[..., Any]:
        def start(
            request: Any, *, timeout: float | None = None, metadata: Iterable[Any] | None = None, **_: Any
        ) -> MemoryCall[Any, Any]:
            exchange = self._exchange(method, timeout, metadata)
            call = kind(exchange, serializer, deserializer, self._options.max_message_bytes)
            call.send_only(request)
            self._fabric.deliver(exchange, self._target)
            return call

        return start

    def _stream_request(
        self,
        method: str,
        kind: type[StreamUnaryCall[Any, Any]] | type[StreamStreamCall[Any, Any]],
        serializer: Any,
        deserializer: Any,
    ) -> Callable[..., Any]:
        def start(
            request_iterator: AsyncIterator[Any] | Iterable[Any] | None = None,
            *,
            timeout: float | None = None,
            metadata: Iterable[Any] | None = None,
            **_: Any,
        ) -> MemoryCall[Any, Any]:
            exchange = self._exchange(method, timeout, metadata)
            call = kind(exchange, serializer, deserializer, self._options.max_message_bytes)
            self._fabric.deliver(exchange, self._target)
            call.consume(request_iterator)
            return call

        return start

    def _exchange(self, method: str, timeout: float | None, metadata: Iterable[Any] | None) -> Exchange:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        given: Metadata = tuple((key, value) for key, value in metadata or ())
        exchange = Exchange(
            method,
            given,
            timeout_seconds=timeout,
            capacity=self._options.stream_window_messages,
            delay_seconds=self._fabric.travel_seconds(self._source, self._target),
            peer=self._source,
        )
        self._open[id(exchange)] = exchange
        exchange.when_done(lambda: self._open.__delitem__(id(exchange)))
        return exchange
