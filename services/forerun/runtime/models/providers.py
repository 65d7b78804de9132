"""Clients of providers by address: `kserve://host:port` is a model that is served here, all else chat completions."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from forerun.runtime.clock import Clock
from forerun.runtime.kserve import KServeClient
from forerun.runtime.models.catalogue import Provider
from forerun.runtime.models.endpoints import MakePort
from forerun.runtime.models.kserve import ServedModel
from forerun.runtime.models.port import ModelPort
from forerun.runtime.models.transport import make_chat_port

SERVED_SCHEME: Final = "kserve"


def make_port(secrets: Path | None, clock: Clock, *, tenant: str = "", agent: str = "") -> MakePort:
    """Makes clients of either kind.

    Args:
        secrets: Directory of secrets.
        clock: For dates in responses.
        tenant: Whose history drafts at models that are served here; empty: none is kept.
        agent: Of the tenant.
    """
    chat = make_chat_port(secrets, clock)

    def make(provider: Provider) -> ModelPort:
        address = urlsplit(provider.url)
        if address.scheme == SERVED_SCHEME:
            return ServedModel(provider.model, KServeClient(address.netloc), tenant=tenant, agent=agent)
        return chat(provider)

    return make
