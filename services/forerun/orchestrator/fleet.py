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
from forerun.orchestrator.lanes import Lanes
from forerun.runtime.errors import NEVER_STARTED, STARTED_KEY, ErrorReason, NotFound, Unavailable
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
        lanes: Executes there.
    """

    address: str
    stub: sandbox_pb2_grpc.SandboxServiceStub = field(repr=False)
    lanes: Lanes = field(repr=False)
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


@dataclass(frozen=True, slots=True)
class Held:
    """A workspace of a session.

    Attributes:
        address: The worker that has it.
        certain: It was worked in, so it is there or lost; else it may not have been made yet.
    """

    address: str
    certain: bool


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
        # Of the sessions that are open here, so never more than those.
        self._held: dict[str, Held] = {}

    def heard(self, report: sandbox_pb2.LoadReport) -> bool:
        """Takes a load report; False where there are too many workers already."""
        worker = self._known(report.address)
        if worker is None:
            return False
        if report.worker != worker.leaving:
            worker.leaving, worker.away_until = None, 0.0
        worker.name = report.worker
        worker.speculative_free = report.speculative_free
        worker.waiting = report.authoritative_waiting
        worker.heard_at = asyncio.get_running_loop().time()
        return True

    def choose(self, session: str, *, anywhere: bool = False, workspace: bool = False) -> Worker:
        """The worker of a session: by rendezvous hashing at first, and from then on the same one.

        Only a worker that was silent for long is given up; its workspaces are not made anew elsewhere.

        Args:
            session: The session; empty: any worker.
            anywhere: What is to be done only reads, and not the workspace: while the session's own worker does not
                answer, another one does it.
            workspace: What is to be done uses the workspace.

        Raises:
            NotFound: the worker that has the session's workspace was given up.
            Unavailable: none is known.
        """
        own = self._own(session, workspace=workspace)
        if not anywhere or not own.away:
            return own
        others = [one for one in self._alive() if not one.away]
        return _by_hash(others, session) if others else own

    def hold(self, session: str, address: str, *, certain: bool = True) -> None:
        """The workspace of a session is at a worker, or may be. One that was not heard of yet has time to report."""
        if certain or session not in self._held:
            self._held[session] = Held(address, certain)
            self._known(address)

    def held(self, session: str) -> Held | None:
        """Where a session's workspace is, if it has one."""
        return self._held.get(session)

    def pin(self, session: str, address: str) -> None:
        """An earlier owner has given a session this worker: it keeps it, if that is there."""
        worker = self._workers.get(address)
        if worker is not None and not _gone(worker):
            self._pin(session, worker)

    def forget(self, session: str) -> None:
        """A session is not open here any more."""
        self._held.pop(session, None)

    def holder(self, session: str) -> str:
        """The id of the worker that holds a session's workspace; empty where that is not known."""
        pinned = self._pins.get(session)
        return pinned.name if pinned is not None else ""

    def _own(self, session: str, *, workspace: bool) -> Worker:
        if (held := self._held.get(session)) is not None:
            holder = self._workers.get(held.address)
            if holder is not None and not _gone(holder):
                return holder
            if workspace:
                # Where nobody is heard, the silence says nothing of this one.
                raise _lost(held) if self._alive() else _nobody()
        pinned = self._pins.get(session)
        if pinned is not None and not _gone(pinned):
            self._pins.move_to_end(session)
            return pinned
        alive = self._alive()
        if not alive:
            raise _nobody()
        chosen = _by_hash(alive, session)
        self._pin(session, chosen)
        return chosen

    def _pin(self, session: str, worker: Worker) -> None:
        if session:
            self._pins[session] = worker
            self._pins.move_to_end(session)
            if len(self._pins) > _PINS:
                self._pins.popitem(last=False)

    def _known(self, address: str) -> Worker | None:
        """The worker at an address, made known if there is room; None where there are too many already."""
        worker = self._workers.get(address)
        if worker is None and len(self._workers) >= limits.WORKERS:
            # Where pools grow and shrink most addresses are those of workers that were.
            self._workers = {known: one for known, one in self._workers.items() if not _gone(one)}
        if worker is None and len(self._workers) < limits.WORKERS:
            worker = self._workers[address] = self._made(address)
            # It may be that of another owner: nothing is sent to it that could go elsewhere, and its time runs.
            worker.heard_at = asyncio.get_running_loop().time() - _SILENT_SECONDS
        return worker

    def _alive(self) -> list[Worker]:
        now = asyncio.get_running_loop().time()
        return [one for one in self._workers.values() if one.heard_at > now - _SILENT_SECONDS]

    def _made(self, address: str) -> Worker:
        stub = sandbox_pb2_grpc.SandboxServiceStub(self._network.channel(address))
        return Worker(address, stub, Lanes(stub))


def _lost(held: Held) -> NotFound:
    return NotFound(
        ErrorReason.WORKSPACE_LOST,
        f"the worker that holds the session's workspace was not heard of for {_GONE_SECONDS:g} s; open a new session "
        "for a new workspace",
        metadata={"worker": held.address},
    )


def _nobody() -> Unavailable:
    return Unavailable(
        ErrorReason.PEER_UNAVAILABLE,
        "no sandbox worker is known; set sandbox_targets, or wait until one reports",
        metadata={STARTED_KEY: NEVER_STARTED},
        retry_after_seconds=1.0,
    )


def _gone(worker: Worker) -> bool:
    """It was silent for so long that it is given up."""
    return worker.heard_at <= asyncio.get_running_loop().time() - _GONE_SECONDS


def _by_hash(workers: Sequence[Worker], session: str) -> Worker:
    """Rendezvous hashing: all who know the same workers choose the same one."""
    return max(workers, key=lambda one: hashlib.blake2b(f"{one.address}\0{session}".encode(), digest_size=8).digest())
