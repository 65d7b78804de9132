"""Where tools may connect: names are checked before, addresses at the moment of connecting.

A name is resolved once, its addresses are judged, and the connection goes to a judged address, so a name that answers
differently the second time gains nothing. Redirects are not followed: each hop is a decision of the tool's caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import httpx
import httpx2

from forerun.core import limits
from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.port import Ended, ToolFault, rejected

_MCP_SESSION: Final = "mcp-session-id"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

EGRESS_EXTENSION: Final = "forerun.egress"
SECONDS_EXTENSION: Final = "forerun.seconds"
"""What remains for the call of a request."""


@dataclass(frozen=True, slots=True)
class Egress:
    """Destinations of one server's tools.

    Attributes:
        names: Host names; `.example.com` allows every name below example.com.
        networks: Addresses and networks that may be connected to, whatever name led there.
    """

    names: frozenset[str]
    networks: tuple[_Network, ...]

    @classmethod
    def of(cls, entries: Sequence[str], endpoints: Sequence[str]) -> Egress:
        """From a policy's list; where that is empty, from the URLs of the endpoints."""
        hosts = list(entries) or [host for url in endpoints if (host := urlsplit(url).hostname) and "{" not in host]
        names: set[str] = set()
        networks: list[_Network] = []
        for host in hosts:
            try:
                networks.append(ipaddress.ip_network(host.strip("[]"), strict=False))
            except ValueError:
                names.add(host.lower().rstrip("."))
        return cls(frozenset(names), tuple(networks))

    def allows_name(self, host: str) -> bool:
        """True where connecting to a host may be tried."""
        return _allows_name(self, host)

    def allows_address(self, host: str, address: str) -> bool:
        """True where an address that a name has led to may be connected to.

        Link-local addresses (where clouds keep credentials), multicast and reserved ones need an entry of their own;
        loopback too, unless the allowed name is `localhost`.
        """
        found = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if _lists(self, found):
            return True
        if found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved:
            return False
        if found.is_loopback:
            return host.lower().rstrip(".") == "localhost" and "localhost" in self.names
        return self.allows_name(host)


@lru_cache(maxsize=1_024)
def _allows_name(egress: Egress, host: str) -> bool:
    name = host.lower().rstrip(".")
    address = _parsed(name)
    if address is not None:
        return _lists(egress, address)
    parts = name.split(".")
    return name in egress.names or any("." + ".".join(parts[at:]) in egress.names for at in range(1, len(parts)))


def _lists(egress: Egress, address: _Address) -> bool:
    return any(address in network for network in egress.networks if network.version == address.version)


@lru_cache(maxsize=1_024)
def _parsed(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """Asks the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def judged_addresses(
    egress: Egress, host: str, port: int, resolve: Resolve, *, seconds: float = math.inf
) -> list[str]:
    """The addresses that may be connected to, in the resolver's order; at least one.

    Args:
        egress: Destinations of the server.
        host: Name or address.
        port: Port.
        resolve: Resolves names.
        seconds: What remains for the call; nothing is waited for that would end later.

    Raises:
        ToolFault: The host or all of its addresses are not allowed, or it has none.
    """
    if not egress.allows_name(host):
        raise _refusal()
    if _parsed(host) is not None:
        return [host.strip("[]")]
    addresses = await _looked_up(host, port, resolve, seconds)
    allowed = [address for address in dict.fromkeys(addresses) if egress.allows_address(host, address)]
    if not allowed:
        raise _refusal()
    return allowed


def _refusal() -> ToolFault:
    return rejected(ErrorReason.EGRESS_DENIED, "the tool's server may not connect there; see `egress` of its policy")


async def _looked_up(host: str, port: int, resolve: Resolve, seconds: float) -> Sequence[str]:
    """What a name leads to. Name servers of clusters are away for moments, which is no failure of the tool.

    This repeats nothing that a tool or provider could notice, so it is no second layer of retries over the
    orchestrator's. That one counts a failure against the tool's provider, and gives up at once where it is in trouble.

    Raises:
        ToolFault: The name resolves to nothing.
    """
    clock = asyncio.get_running_loop().time
    until, pause = clock() + seconds, limits.RETRY_BACKOFF_INITIAL_SECONDS
    left = limits.LOOKUP_ATTEMPTS
    while True:
        left -= 1
        try:
            return await resolve(host, port)
        except OSError as error:
            if left == 0 or clock() + pause >= until:
                raise ToolFault(
                    Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED, "the name of the tool's host does not resolve",
                    not_started=True,
                ) from error  # fmt: skip
        await asyncio.sleep(pause)
        pause = min(2.0 * pause, limits.RETRY_BACKOFF_MAX_SECONDS)


class EgressTransport(httpx.AsyncBaseTransport):
    """Connects requests of httpx to judged addresses only.

    Args:
        inner: Makes the connections.
        resolve: Resolves names.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, resolve: Resolve = system_resolve) -> None:
        self._inner = inner
        self._resolve = resolve

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request to an address that its server's egress allows."""
        egress: Egress = request.extensions[EGRESS_EXTENSION]
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        seconds = float(request.extensions.get(SECONDS_EXTENSION, math.inf))
        *others, last = await judged_addresses(egress, host, port, self._resolve, seconds=seconds)
        # The Host header was set from the name; TLS still proves the name.
        request.extensions = {**request.extensions, "sni_hostname": host}
        for address in others:
            request.url = request.url.copy_with(host=address)
            with contextlib.suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._inner.handle_async_request(request)
        if last != host:
            request.url = request.url.copy_with(host=last)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()


class McpEgressTransport(httpx2.AsyncBaseTransport):
    """The same for the HTTP library of the MCP client, for one server.

    Args:
        inner: Makes the connections.
        egress: Destinations of the server.
        resolve: Resolves names.

    Attributes:
        forgotten: The server has said that it does not know the connection's MCP session any more (404).
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, egress: Egress, resolve: Resolve = system_resolve) -> None:
        self._inner = inner
        self._egress = egress
        self._resolve = resolve
        self.forgotten = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request to an address that the server's egress allows."""
        response = await self._sent(request)
        if response.status_code == httpx2.codes.NOT_FOUND and request.method == "POST":
            self.forgotten |= _MCP_SESSION in request.headers
        return response

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        *others, last = await judged_addresses(self._egress, host, port, self._resolve)
        request.extensions = {**request.extensions, "sni_hostname": host}
        for address in others:
            request.url = request.url.copy_with(host=address)
            with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await self._inner.handle_async_request(request)
        request.url = request.url.copy_with(host=last)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()
