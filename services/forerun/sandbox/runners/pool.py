"""The runners that a worker can find, and which of its sessions has which.

A session takes a runner with its first command and keeps it: its next command starts at once, and finds nothing of
another session there. What lies in a runner is a copy, the workspace is the worker's; so a runner that is lost, or
given up for a session that waits, costs its session another one and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from forerun.runtime.clock import Clock
from forerun.runtime.errors import AlreadyExists, ErrorReason, ForerunError
from forerun.runtime.ids import Ids
from forerun.runtime.tasks import TaskScope
from forerun.runtime.tls import Tls
from forerun.sandbox.commands.runner import CommandPlan, CommandResult
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.connectors.port import Ended, ToolFault
from forerun.sandbox.isolation.launch import SetupFailed
from forerun.sandbox.owner import Owner
from forerun.sandbox.runners.leases import Lease, may_take_ahead, to_give_up, unused
from forerun.sandbox.runners.remote import Lost, Remote, tried
from forerun.v1 import runner_pb2

_LOG: Final = logging.getLogger(__name__)

_CLAIM_BYTES: Final = 32
_LOOK_SECONDS: Final = 0.25
# How long work ahead of time tries runners one after the other: an agent's command of its session waits for that.
_AHEAD_SECONDS: Final = 0.5
# A runner that did not answer, or that somebody else has: names are known for a few seconds longer than they are true.
_AVOID_SECONDS: Final = 3.0
# Runners that may go away one after the other before a command of an agent begins in one of them.
_TRIES: Final = 3
_RETRY_SECONDS: Final = 1.0

TRIAL_SECONDS: Final = 120.0
"""How long a worker that starts waits for a runner: both may have been started at once, on a busy node."""

Discover = Callable[[], Awaitable[Sequence[str]]]


@dataclass(slots=True, eq=False)
class _Taken:
    lease: Lease
    remote: Remote


@dataclass(slots=True, eq=False)
class _Taking:
    task: asyncio.Future[_Taken]
    speculative: bool


class Runners:
    """Runs the commands of each session in a runner of its own.

    Args:
        discover: Finds the addresses of runners; those that are taken may be among them.
        tls: What this worker proves itself with, and the authority of the runners' certificates.
        clock: For the age of what nobody uses.
        ids: Draws claims.
        tasks: Owns what goes on in the background.
        wait_seconds: How long a command of an agent waits for a runner.
        idle_seconds: A session that runs nothing for so long lets go of its runner.
        kept: Free runners that work ahead of time leaves to agents.
    """

    def __init__(
        self, discover: Discover, tls: Tls, *, clock: Clock, ids: Ids, tasks: TaskScope, wait_seconds: float,
        idle_seconds: float, kept: int,
    ) -> None:  # fmt: skip
        self._discover = discover
        self._tls = tls
        self._clock = clock
        self._ids = ids
        self._tasks = tasks
        self._wait_seconds = wait_seconds
        self._idle_seconds = idle_seconds
        self._kept = kept
        self._taken: dict[Owner, _Taken] = {}
        self._taking: dict[Owner, _Taking] = {}
        self._trying: set[str] = set()
        self._avoided: dict[str, float] = {}
        self._waiting = 0

    def start(self) -> None:
        """Begins to let go of what nobody uses."""
        self._tasks.every(self._idle_seconds / 4, self.let_go_of_idle, name="idle-runners")

    async def trial(self) -> runner_pb2.TryResponse:
        """Has the first runner that answers run `true`.

        Raises:
            SetupFailed: None does.
        """
        why = "no runner is ready"
        deadline = self._clock.monotonic() + TRIAL_SECONDS
        while True:
            for address in await self._addresses():
                try:
                    return await tried(address, self._tls)
                except ForerunError as error:
                    why = error.message
            if self._clock.monotonic() >= deadline:
                raise SetupFailed(f"within {TRIAL_SECONDS:g} s {why}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def run(self, plan: CommandPlan) -> CommandResult:
        """Runs a command in its session's runner.

        Raises:
            ToolFault: There is no free runner; or the runner was lost when the command may have begun.
            SetupFailed: The command did not come up, and has certainly not started.
        """
        assert plan.owner is not None
        for _ in range(_TRIES):
            taken = await self._of(plan.owner, speculative=not plan.demand.asked_for)
            lease = taken.lease
            lease.begin(self._clock.monotonic(), plan.demand)
            try:
                return await taken.remote.run(plan)
            except Lost as error:
                self._forget(taken)
                # An agent may have begun to wait for it since: then it is a runner that was lost.
                if lease.given_up and not plan.demand.asked_for:
                    raise _preempted(error) from error
                if error.begun:
                    raise _lost(error) from error
            finally:
                lease.end(self._clock.monotonic(), plan.demand)
                # One that takes no more commands may still run some: it ends with the last of them.
                if not lease.running and self._taken.get(plan.owner) is not taken:
                    await to_the_end(taken.remote.end())
        raise SetupFailed(f"{_TRIES} runners went away one after the other")

    async def close_session(self, owner: Owner) -> None:
        """Lets go of the session's runner. Idempotent."""
        if (taking := self._taking.pop(owner, None)) is not None:
            taking.task.cancel()
            await asyncio.wait([taking.task])
        if (taken := self._taken.get(owner)) is not None:
            await self._let_go(taken)

    async def close(self) -> None:
        """Lets go of all runners."""
        for owner in [*self._taking, *self._taken]:
            await self.close_session(owner)

    async def let_go_of_idle(self) -> None:
        """Ends the runners of sessions that have run nothing for long."""
        oldest = self._clock.monotonic() - self._idle_seconds
        idle = unused((taken.lease for taken in self._taken.values()), before=oldest)
        # All are forgotten before the first is waited for: meanwhile a command may begin, and takes another one.
        for taken in [self._taken.pop(lease.owner) for lease in idle]:
            await taken.remote.end()

    async def _of(self, owner: Owner, *, speculative: bool) -> _Taken:
        """The session's runner, taken if it has none."""
        while True:
            taken = self._taken.get(owner)
            if taken is not None and not taken.remote.lost.is_set() and not taken.lease.given_up:
                return taken
            if taken is not None:
                await self._let_go(taken)
            taking = self._taking.get(owner)
            if taking is not None and speculative:
                raise _none_free("the session is taking one")
            if taking is not None and taking.speculative:
                await asyncio.wait([taking.task])  # it does not wait for a runner, and this one may have to
                continue
            if taking is None:
                taking = _Taking(asyncio.ensure_future(self._take(owner, speculative=speculative)), speculative)
                self._taking[owner] = taking
                taking.task.add_done_callback(partial(self._took, owner, taking))
            try:
                return await asyncio.shield(taking.task)
            except asyncio.CancelledError:
                if taking.task.cancelled():
                    raise _none_free("the session has ended") from None
                raise

    def _took(self, owner: Owner, taking: _Taking, task: asyncio.Future[_Taken]) -> None:
        if self._taking.get(owner) is taking:
            del self._taking[owner]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone; nobody else has to hear of it

    async def _take(self, owner: Owner, *, speculative: bool) -> _Taken:
        deadline = self._clock.monotonic() + (_AHEAD_SECONDS if speculative else self._wait_seconds)
        made_room = False
        self._waiting += not speculative
        try:
            while True:
                free = await self._free()
                if speculative and not may_take_ahead(len(free), waiting=self._waiting, kept=self._kept):
                    raise _none_free(f"{len(free)} are free, which are kept for work that agents wait for")
                for address in free:
                    if (remote := await self._try(address)) is not None:
                        taken = self._taken[owner] = _Taken(Lease(owner, self._clock.monotonic()), remote)
                        return taken
                    if self._clock.monotonic() >= deadline:
                        break  # each that does not answer takes seconds
                if speculative or self._clock.monotonic() >= deadline:
                    raise _none_free(f"none became free within {self._wait_seconds:g} s")
                # Once: what comes in its place takes a while. But those that are at work now may be idle later.
                made_room = made_room or await self._make_room()
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._waiting -= not speculative

    async def _try(self, address: str) -> Remote | None:
        if address in self._trying:
            return None
        self._trying.add(address)
        try:
            return await Remote.take(address, self._tls, self._ids.token(_CLAIM_BYTES).encode())
        except ForerunError as error:
            self._avoided[address] = self._clock.monotonic() + _AVOID_SECONDS
            if not isinstance(error, AlreadyExists):
                _LOG.info("a runner cannot be taken", extra={"fields": {"error.type": error.reason}})
            return None
        finally:
            self._trying.discard(address)

    async def _free(self) -> list[str]:
        """Runners that are worth a try, in an order of this worker's own."""
        now = self._clock.monotonic()
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        mine = {taken.remote.address for taken in self._taken.values()}
        found = [one for one in await self._addresses() if one not in mine | self._trying | self._avoided.keys()]
        if not found:
            return []
        first = int(self._ids.fraction() * len(found))
        return [*found[first:], *found[:first]]

    async def _addresses(self) -> list[str]:
        return sorted(set(await self._discover()))

    async def _make_room(self) -> bool:
        """Gives up one runner for a session whose agent waits, and a new one comes. False: all are needed."""
        lease = to_give_up(taken.lease for taken in self._taken.values())
        if lease is None:
            return False
        lease.given_up = True
        await self._let_go(self._taken[lease.owner])
        return True

    async def _let_go(self, taken: _Taken) -> None:
        self._forget(taken)
        await taken.remote.end()

    def _forget(self, taken: _Taken) -> None:
        if self._taken.get(taken.lease.owner) is taken:
            del self._taken[taken.lease.owner]


def resolving(targets: Sequence[str]) -> Discover:
    """Finds all addresses of some `host:port`; a name of a headless Service has those of its ready pods."""

    async def discover() -> list[str]:
        found: list[str] = []
        for target in targets:
            host, _, port = target.rpartition(":")
            with contextlib.suppress(socket.gaierror):  # a Service without a ready pod has no address
                loop = asyncio.get_running_loop()
                for family, *_, place in await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
                    found.append(f"[{place[0]}]:{port}" if family == socket.AF_INET6 else f"{place[0]}:{port}")
        return found

    return discover


def _none_free(why: str) -> ToolFault:
    return ToolFault(
        Ended.UNAVAILABLE, ErrorReason.NO_FREE_RUNNER,
        f"no runner is free: {why}; see runners_wait_seconds of the sandbox's settings, and the number of runners "
        "(runners.replicas of the chart)",
        metadata={"setting": "FORERUN_SANDBOX_RUNNERS_WAIT_SECONDS"}, not_started=True,
        retry_after_seconds=_RETRY_SECONDS,
    )  # fmt: skip


def _preempted(error: Lost) -> ToolFault:
    return ToolFault(
        Ended.CANCELLED, ErrorReason.PREEMPTED, "its runner was given to authoritative work",
        not_started=not error.begun,
    )  # fmt: skip


def _lost(error: Lost) -> ToolFault:
    return ToolFault(Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED, f"{error}; the command may have run")
