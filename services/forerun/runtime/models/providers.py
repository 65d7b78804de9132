"""Clients of providers by address: `kserve://host:port` is a model that is served here, all else chat completions."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import httpx

from forerun.runtime.clock import Clock
from forerun.runtime.kserve import KServeClient
from forerun.runtime.models.catalogue import SERVED_SCHEME, Provider
from forerun.runtime.models.endpoints import MakePort
from forerun.runtime.models.kserve import ServedModel
from forerun.runtime.models.port import ModelPort
from forerun.runtime.models.transport import make_chat_port


def make_port(secrets: Path | None, clock: Clock, *, transport: httpx.AsyncBaseTransport | None = None) -> MakePort:
    """Makes clients of either kind.

    Args:
        secrets: Directory of secrets.
        clock: For dates in responses.
        transport: Carries all HTTP requests, instead of connections of each client.
    """
    chat = make_chat_port(secrets, clock, transport=transport)

    def make(provider: Provider) -> ModelPort:
        address = urlsplit(provider.url)
        if address.scheme == SERVED_SCHEME:
            # No tenant: a provider is asked for all of them, and what one was told drafts for no other.
            most = {"max_tokens": provider.max_output_tokens}
            return ServedModel(provider.name, KServeClient(address.netloc), options=most)
        return chat(provider)

    return make
