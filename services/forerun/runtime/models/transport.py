"""Clients of providers with connections of their own."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

import httpx

from forerun.runtime.clock import Clock
from forerun.runtime.models.catalogue import Provider
from forerun.runtime.models.chat import ChatCompletions
from forerun.runtime.models.endpoints import MakePort


def make_chat_port(
    secrets: Path | None, clock: Clock, *, transport: httpx.AsyncBaseTransport | None = None
) -> MakePort:
    """Makes clients that speak chat completions.

    Args:
        secrets: Directory of secrets.
        clock: For dates in responses.
        transport: Carries all requests, instead of connections of each client.
    """

    def make(provider: Provider) -> ChatCompletions:
        return ChatCompletions(provider, transport or _connections(provider), secrets, clock)

    return make


def _connections(provider: Provider) -> httpx.AsyncBaseTransport:
    """At most as many connections as there may be requests: whoever waits, waits for its place and not in here."""
    bounds = httpx.Limits(max_connections=provider.concurrency, max_keepalive_connections=provider.concurrency)
    tls = _tls() if provider.url.startswith("https:") else False
    return httpx.AsyncHTTPTransport(limits=bounds, verify=tls)


@cache
def _tls() -> ssl.SSLContext:
    """One for the process: to make it takes longer than many a request."""
    return httpx.create_ssl_context()
