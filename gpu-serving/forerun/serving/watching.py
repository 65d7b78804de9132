"""What a keeper sees of a server beside the answers of its models, and what it may do to their processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from forerun.runtime.errors import ErrorReason, Unavailable
from forerun.serving.probes import Ask, Health, Probe
from forerun.serving.progress import progress_of, scraped
from forerun.serving.server import Running, reached_at
from forerun.serving.stalls import Stalls

HUNG_SECONDS: Final = 120.0
"""Without an answer and without progress for so long a model hangs. No single pass may take as long."""

_SCRAPE_SECONDS: Final = 5.0


class ServerHung(Unavailable):
    """The server itself does not tell anything any more: nothing but another start helps."""


async def _nothing() -> str:
    return ""


async def _lives() -> bool:
    return True


def _nobody(model: str, version: str) -> Sequence[int]:
    return ()


@dataclass(slots=True)
class Watch:
    """Tells models that hang from those that are busy. As it is made without arguments, it sees nothing hang.

    Args:
        exposition: What the server's `/metrics` says; None where it says nothing in time.
        live: Whether the server answers where it is asked for inferences.
        end: Kills the processes of a version of a model, and says which.
        now: Seconds, never going backwards.
        hung_seconds: See `HUNG_SECONDS`.
    """

    exposition: Callable[[], Awaitable[str | None]] = _nothing
    live: Callable[[], Awaitable[bool]] = _lives
    end: Callable[[str, str], Sequence[int]] = _nobody
    now: Callable[[], float] = field(default=lambda: asyncio.get_running_loop().time())
    hung_seconds: float = HUNG_SECONDS
    _stalls: Stalls = field(init=False)

    def __post_init__(self) -> None:
        self._stalls = Stalls(self.hung_seconds)

    async def judge(self, probe: Probe, asks: Mapping[str, Ask]) -> Probe:
        """A probe in the light of those before it: what was busy may hang. The server is asked only where one was.

        Args:
            probe: What was found just now.
            asks: The models, and how they are asked.

        Raises:
            ServerHung: The server has told nothing for too long.
            Unavailable: It tells nothing now.
        """
        at = self.now()
        if probe.health is not Health.BUSY:
            self._stalls.silent(at, tells=True)
            return self._stalls.judge(probe, {}, at)
        said = await self.exposition()
        self._check_server(at, tells=said is not None or await self.live())
        decoupled = frozenset(model for model, ask in asks.items() if ask.streams)
        return self._stalls.judge(probe, progress_of(said or "", decoupled), at)

    def begin_anew(self) -> None:
        """A model was loaded anew."""
        self._stalls.begin_anew()

    def seconds(self, model: str) -> float:
        """How long a model has neither answered nor got on for."""
        return self._stalls.seconds(model, self.now())

    def _check_server(self, at: float, *, tells: bool) -> None:
        if self._stalls.silent(at, tells=tells):
            raise ServerHung(
                ErrorReason.PEER_UNAVAILABLE,
                f"the Triton server has not answered for {self.hung_seconds:g} s; it has to be started anew",
            )
        if not tells:
            raise Unavailable(ErrorReason.PEER_UNAVAILABLE, "the Triton server does not answer")


def watch_of(server: Running, end: Callable[[int, str, str], Sequence[int]], *, hung_seconds: float) -> Watch:
    """What a server that runs here shows.

    Args:
        server: The server.
        end: Kills processes of a model below the server's; see `forerun.serving.processes`.
        hung_seconds: See `HUNG_SECONDS`.
    """
    return Watch(
        exposition=lambda: scraped(reached_at(server.metrics_address), _SCRAPE_SECONDS),
        live=server.client.live,
        end=lambda model, version: end(server.pid, model, version),
        hung_seconds=hung_seconds,
    )
