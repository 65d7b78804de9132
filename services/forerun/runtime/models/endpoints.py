"""The providers that this process talks to: one client each, with a bound on what it sends at once."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from forerun.core import limits
from forerun.core.race_replicas import Fault
from forerun.runtime.errors import ErrorReason, ResourceExhausted
from forerun.runtime.models.catalogue import Provider
from forerun.runtime.models.errors import ModelError, no_place
from forerun.runtime.models.port import ModelPort

MakePort = Callable[[Provider], ModelPort]


@dataclass(slots=True)
class Endpoint:
    """A provider and its client.

    Attributes:
        provider: Where and how.
        port: The client.
        busy: Requests under way.
        retired: The policy does not name it any more: it is closed when it is idle.
    """

    provider: Provider
    port: ModelPort
    busy: int = 0
    retired: bool = False
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    @contextlib.asynccontextmanager
    async def place(self, *, waits: bool, until: float = math.inf) -> AsyncIterator[None]:
        """A place for one request, in the order of asking.

        Args:
            waits: Somebody waits for it. Else it goes only where there is a place now: what nobody waits for is never
                queued.
            until: When the request has to have ended, on the loop's clock.

        Raises:
            ModelError: there is none.
        """
        if self.busy < self.provider.concurrency and not self._waiting:
            self.busy += 1
        else:
            await self._queue(waits, until)
        try:
            yield
        finally:
            self._give_on()
            if self.retired and not self.busy:
                await self.port.close()

    async def _queue(self, waits: bool, until: float) -> None:
        if not waits or len(self._waiting) >= limits.MODEL_QUEUE:
            raise _full(self.provider)
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        began, longest = loop.time(), self.provider.deadlines.first_token
        try:
            async with asyncio.timeout_at(min(began + longest, until)):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._give_on()  # it was given a place at the moment at which it gave up
            elif place in self._waiting:
                self._waiting.remove(place)
            if isinstance(error, TimeoutError):
                which = "timeout_seconds" if until < began + longest else "first_token_seconds"
                raise no_place(self.provider.name, which, min(longest, until - began)) from None
            raise

    def _give_on(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.busy -= 1


class Endpoints:
    """All of them.

    Args:
        make_port: Makes the client of a provider.
    """

    def __init__(self, make_port: MakePort) -> None:
        self._make_port = make_port
        self._known: dict[Provider, Endpoint] = {}

    def of(self, provider: Provider) -> Endpoint:
        """The endpoint of a provider."""
        known = self._known.get(provider)
        if known is None:
            known = self._known[provider] = Endpoint(provider, self._make_port(provider))
        return known

    async def keep(self, providers: Iterable[Provider]) -> None:
        """These are named by the policy now; the others are closed, once they are idle."""
        named = frozenset(providers)
        for provider, endpoint in list(self._known.items()):
            if provider not in named:
                del self._known[provider]
                endpoint.retired = True
                if not endpoint.busy:
                    await endpoint.port.close()

    async def close(self) -> None:
        """Closes all connections."""
        for endpoint in self._known.values():
            await endpoint.port.close()
        self._known.clear()


def _full(provider: Provider) -> ModelError:
    return ModelError(
        ResourceExhausted(
            ErrorReason.QUEUE_FULL,
            f"the model provider {provider.name} has {provider.concurrency} requests under way, and too many wait "
            "(MODEL_QUEUE); its `concurrency` in the policy changes that",
            metadata={"provider": provider.name, "limit": "MODEL_QUEUE"},
            retry_after_seconds=1.0,
        ),
        Fault.FULL,
    )
