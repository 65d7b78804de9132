"""How services meet: the port that hides which network carries a call.

`GrpcNetwork` is grpc.aio over sockets, `MemoryNetwork` carries the same generated stubs and servicers over queues in
one event loop, for the simulation. Both put the same guard before every handler (network_inbound) and the same
credentials and trace context on every outgoing call (network_outbound), and pass one conformance suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from forerun.core import limits
from forerun.runtime.errors import ErrorReason, Unavailable, from_rpc_error

# A call of a generated function such as `lambda server: add_SessionsServicer_to_server(servicer, server)`.
# The server's type is Any because generated code accepts whatever has grpc.aio.Server's two registration methods.
Register = Callable[[Any], None]

# Health checks of this name ask only whether the event loop still answers; readiness never enters.
LIVENESS_SERVICE = "liveness"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Limits and timers of every channel and server. Both sides are derived from one instance, so that they agree."""

    max_message_bytes: int = limits.MESSAGE_BYTES
    """Largest message in either direction; what is larger travels in chunks or by digest."""
    keepalive_seconds: float = 30.0
    """Silence after which either side pings. Below the idle time-outs of usual load balancers and NATs (60 s)."""
    keepalive_timeout_seconds: float = 10.0
    """How long a ping may stay unanswered before the connection counts as broken."""
    tolerated_ping_seconds: float = 5.0
    """Shortest ping interval that servers accept; below what any client of ours sends and grpc's usual minimum of
    10 s, so that nobody is told "too many pings"."""
    max_connection_age_seconds: float | None = None
    """Age at which a server asks clients to connect again, so that new replicas get their share; None is never."""
    max_connection_age_grace_seconds: float = 60.0
    """How long calls of an aged connection may go on."""
    reconnect_initial_seconds: float = 0.1
    """First wait before a broken connection is tried again."""
    reconnect_max_seconds: float = 1.0
    """Longest wait between two tries: what restarts is found within it. grpc's own default is two minutes."""
    stream_window_messages: int = 16
    """Messages in flight per direction of a call in memory; the counterpart of HTTP/2's flow control."""


class ServerHandle(Protocol):
    """A server that listens."""

    @property
    def address(self) -> str:
        """Where clients reach it; has the real port when port 0 was asked for."""
        ...

    async def set_serving(self, serving: bool) -> None:
        """What the health service says about readiness. A server starts as not serving."""
        ...

    async def stop(self, grace_seconds: float) -> None:
        """Health becomes NOT_SERVING, new calls are refused, running ones get `grace_seconds`, then they are ended."""
        ...


class Network(Protocol):
    """Serves and calls gRPC services."""

    async def serve(
        self, name: str, target: str, register: Sequence[Register], *, services: Sequence[str]
    ) -> ServerHandle:
        """Listens on `target`.

        Args:
            name: The process's name, for logs.
            target: `host:port`; port 0 takes a free one.
            register: Each adds one servicer to the server it is given.
            services: Full names of the services, for health and reflection.

        Raises:
            FailedPrecondition: the address cannot be taken.
        """
        ...

    def channel(self, target: str) -> grpc.aio.Channel:
        """The channel to `target`, shared by all who ask for it. Needs a running loop; belongs to the network."""
        ...

    async def close(self) -> None:
        """Closes all channels. Servers are stopped by their handles."""
        ...


@contextmanager
def rpc_errors() -> Iterator[None]:
    """Makes failures typed: inside, `await stub.Get(request, timeout=2.0)` fails with one of our own errors.

    Raises:
        ForerunError: the class and reason that the server sent, or that follow from the transport's status.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.InvalidStateError as error:
        # A write after the peer ended the stream; why it ended is in the status that the reading side gets.
        raise Unavailable(ErrorReason.CALL_INTERRUPTED, "the stream has ended; reading it tells why") from error


def remaining_seconds(context: grpc.aio.ServicerContext[Any, Any], at_most: float) -> float:
    """The time-out to pass on: what remains of the caller's deadline, and never more than `at_most`."""
    remaining: float | None = context.time_remaining()  # type: ignore[redundant-expr,unused-ignore]
    return at_most if remaining is None else min(at_most, remaining)
