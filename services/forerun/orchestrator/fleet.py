"""Which sandbox workers there are, which of them a session has, and which do not answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from forerun.core import limits
from forerun.runtime.errors import NEVER_STARTED, STARTED_KEY, ErrorReason, Unavailable
from forerun.runtime.network import Network
from forerun.v1 import sandbox_pb2, sandbox_pb2_grpc

_SILENT_SECONDS: Final = 10.0
_GONE_SECONDS: Final = 60.0
_PINS: Final = 2 * limits.SESSIONS_PER_REPLICA


@dataclass(slots=True)
class Worker:
    """One worker, as far as this replica knows.

    Attributes:
        address: Where it is reached.
        name: Its id, by its last report; empty before the first one.
        speculative_free: Free slots for speculation, by its last report less what was started since.
        waiting: Authoritative calls that wait there.
        heard_at: Loop time of the last report; configured workers count as heard.
        away_until: Loop time until which calls that need not be there go elsewhere, because it did not answer. Its next
            report ends that.
        leaving: The process that said that it stops: until another one reports, nothing is sent there.
        stub: Calls it.
    """

    address: str
    stub: sandbox_pb2_grpc.SandboxServiceStub = field(repr=False)
    name: str = ""
    speculative_free: int = 1
    waiting: int = 0
    heard_at: float = field(default=float("inf"))
    away_until: float = 0.0
    leaving: str | None = None

    @property
    def away(self) -> bool:
        """It did not answer lately."""
        return self.away_until > asyncio.get_running_loop().time()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Remembers when it does not answer.

        Raises:
            Unavailable: nothing is sent to a process that said that it stops: of what the end of its connection cuts
                off nobody would know whether it was started.
        """
        if self.leaving is not None and self.away:
            raise Unavailable(
                ErrorReason.SHUTTING_DOWN,
                "the session's worker restarts; the call waits for it",
                metadata={STARTED_KEY: NEVER_STARTED},
            )
        try:
            yield
        except Unavailable as error:
            self.away_until = asyncio.get_running_loop().time() + _SILENT_SECONDS
            if error.reason is ErrorReason.SHUTTING_DOWN:
                self.leaving = self.name
            raise


class Fleet:
    """The workers of an installation.

    Args:
        network: How they are reached.
        targets: Addresses that are known from the settings; others are learned from load reports.
    """

    def __init__(self, network: Network, targets: tuple[str, ...]) -> None:
        self._network = network
        self._workers: dict[str, Worker] = {target: self._made(target) for target in targets}
        self._pins: OrderedDict[str, Worker] = OrderedDict()

    def heard(self, report: sandbox_pb2.LoadReport) -> bool:
        """Takes a load report; False where there are too many workers already."""
        worker = self._workers.get(report.address)
        if worker is None:
            if len(self._workers) >= limits.WORKERS:
                return False
            worker = self._workers[report.address] = self._made(report.address)
        if report.worker != worker.leaving:
            worker.leaving, worker.away_until = None, 0.0
        worker.name = report.worker
        worker.speculative_free = report.speculative_free
        worker.waiting = report.authoritative_waiting
        worker.heard_at = asyncio.get_running_loop().time()
        return True

    def choose(self, session: str, *, anywhere: bool = False) -> Worker:
        """The worker of a session: by rendezvous hashing at first, and from then on the same one.

        Its workspace is there. Only a worker that was silent for long is given up, and its workspaces with it.

        Args:
            session: The session; empty: any worker.
            anywhere: What is to be done only reads, and not the workspace: while the session's own worker does not
                answer, another one does it.

        Raises:
            Unavailable: none is known.
        """
        own = self._own(session)
        if not anywhere or not own.away:
            return own
        others = [one for one in self._alive() if not one.away]
        return _by_hash(others, session) if others else own

    def holder(self, session: str) -> str:
        """The id of the worker that holds a session's workspace; empty where that is not known."""
        pinned = self._pins.get(session)
        return pinned.name if pinned is not None else ""

    def _own(self, session: str) -> Worker:
        pinned = self._pins.get(session)
        if pinned is not None and pinned.heard_at > asyncio.get_running_loop().time() - _GONE_SECONDS:
            self._pins.move_to_end(session)
            return pinned
        alive = self._alive()
        if not alive:
            raise Unavailable(
                ErrorReason.PEER_UNAVAILABLE,
                "no sandbox worker is known; set sandbox_targets, or wait until one reports",
                retry_after_seconds=1.0,
            )
        chosen = _by_hash(alive, session)
        if session:
            self._pins[session] = chosen
            if len(self._pins) > _PINS:
                self._pins.popitem(last=False)
        return chosen

    def _alive(self) -> list[Worker]:
        now = asyncio.get_running_loop().time()
        return [one for one in self._workers.values() if one.heard_at > now - _SILENT_SECONDS]

    def _made(self, address: str) -> Worker:
        return Worker(address, sandbox_pb2_grpc.SandboxServiceStub(self._network.channel(address)))


def _by_hash(workers: Sequence[Worker], session: str) -> Worker:
    """Rendezvous hashing: all who know the same workers choose the same one."""
    return max(workers, key=lambda one: hashlib.blake2b(f"{one.address}\0{session}".encode(), digest_size=8).digest())
