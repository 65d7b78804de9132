"""The model servers behind the gateway: one request over the replicas of its model, with retries, breakers, deadlines.

What is decided there is decided where all model requests are (`forerun.core.race_replicas`): tried again only before
the first token, from a budget, within the request's own time; a replica that keeps failing is left alone for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from forerun.core.replica_order import replica_order
from forerun.gateway.settings import ServedModelSettings
from forerun.runtime.kserve import KServeClient
from forerun.runtime.models.catalogue import SERVED_SCHEME, Model, Provider
from forerun.runtime.models.endpoints import MakePort
from forerun.runtime.models.kserve import ServedModel
from forerun.runtime.models.models import CallTerms, Models
from forerun.runtime.models.port import Deadlines, ModelEvent, ModelPort, ModelRequest

_KEY: Final = "{tenant}\0{agent}"


class Upstream:
    """The models that a gateway offers.

    Args:
        offered: Their names and addresses.
        deadlines: Of every request.
        concurrency: Requests at once to one replica.
        make_port: Makes the client of a replica; None: for Triton servers with our loop.
    """

    def __init__(
        self,
        offered: Iterable[ServedModelSettings],
        *,
        deadlines: Deadlines,
        concurrency: int,
        make_port: MakePort | None = None,
    ) -> None:
        self._deadlines = deadlines
        self._models = Models.made_of(make_port or _served)
        self._offered = {one.name: _model(one, deadlines, concurrency) for one in offered}

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may ask for."""
        return tuple(self._offered)

    def ask(self, name: str, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The answer of a model that is offered. Must be called inside a running loop, which times the request.

        Closing the generator ends the request at whatever replica has it.

        Raises:
            ForerunError: No replica has answered; where all of them are left alone now, it says for how long.
        """
        model = self._offered[name]
        known = {one.url: one for one in model.providers}
        busy = {one.url: self._models.endpoints.of(one).busy for one in model.providers}
        key = _KEY.format(tenant=request.served.get("tenant", ""), agent=request.served.get("agent", ""))
        ordered = tuple(known[one] for one in replica_order(busy, key))
        until = asyncio.get_running_loop().time() + self._deadlines.total
        # A generation changes nothing, so it may be asked again until a token of it has been seen.
        terms = CallTerms(races=False, deadline=until)
        return self._models.call(replace(model, providers=ordered), request, terms).events()

    async def close(self) -> None:
        """Closes all connections."""
        await self._models.endpoints.close()


def _model(one: ServedModelSettings, deadlines: Deadlines, concurrency: int) -> Model:
    providers = tuple(
        Provider(
            name=one.name if len(one.addresses) == 1 else f"{one.name} (replica {number})",
            url=f"{SERVED_SCHEME}://{address}",
            model=one.name,
            deadlines=deadlines,
            concurrency=concurrency,
        )
        for number, address in enumerate(one.addresses, start=1)
    )
    return Model(one.name, providers)


def _served(provider: Provider) -> ModelPort:
    return ServedModel(provider.name, KServeClient(urlsplit(provider.url).netloc))
