"""One leader by a Lease, with clocks that are not the same and a server that is slow or away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from forerun.operator.kubernetes.election import DURATION_SECONDS, TRUSTED_SECONDS, Election
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import run_virtual
from tests.unit.operator.fakes import client, refused, said


class Leases:
    """An API server that holds one Lease; writes are refused in another version than the present one."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.cut_off: set[str] = set()

    def of(self, who: str) -> Callable[[httpx.Request], httpx.Response]:
        """What one replica reaches of it."""

        def answer(request: httpx.Request) -> httpx.Response:
            if who in self.cut_off:
                raise httpx.ConnectError("cut off")
            if request.method == "GET":
                return refused(404, "NotFound") if self.lease is None else said(self.lease)
            body = json.loads(request.content)
            if request.method == "POST" and self.lease is not None:
                return refused(409, "AlreadyExists")
            if request.method == "PUT" and body["metadata"]["resourceVersion"] != str(self.version):
                return refused(409, "Conflict")
            self.version += 1
            body["metadata"]["resourceVersion"] = str(self.version)
            self.lease = body
            return said(body)

        return answer


class Replicas:
    """Replicas that take part."""

    def __init__(self, clock: LoopClock, *names: str) -> None:
        self.server = Leases()
        self.all = {
            name: Election(client(self.server.of(name)), "here", "lease", name, clock, lambda: None) for name in names
        }
        self._tasks = {name: asyncio.ensure_future(election.run()) for name, election in self.all.items()}

    def leaders(self) -> list[str]:
        return [name for name, election in self.all.items() if election.leading]

    async def until(self, *leaders: str) -> float:
        """Waits until exactly these lead; how long it took. There are never two."""
        began = asyncio.get_running_loop().time()
        while self.leaders() != list(leaders):
            assert len(self.leaders()) <= 1
            await asyncio.sleep(0.1)
            assert asyncio.get_running_loop().time() - began < 120.0
        return asyncio.get_running_loop().time() - began

    def crash(self, name: str) -> None:
        self._tasks.pop(name).cancel()

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()


def test_one_leads_and_stays() -> None:
    async def main(clock: LoopClock, _ids: SeededIds) -> None:
        replicas = Replicas(clock, "a", "b", "c")
        await replicas.until("a")
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert replicas.leaders() == ["a"]
        replicas.close()

    run_virtual(main)


def test_a_crashed_leader_is_followed_by_another_within_thirty_seconds() -> None:
    async def main(clock: LoopClock, _ids: SeededIds) -> None:
        replicas = Replicas(clock, "a", "b")
        await replicas.until("a")
        replicas.crash("a")
        gone = await replicas.until()
        assert gone <= TRUSTED_SECONDS + 0.2
        assert gone + await replicas.until("b") < 30.0
        replicas.close()

    run_virtual(main)


def test_a_leader_that_is_cut_off_stops_acting_before_another_begins() -> None:
    async def main(clock: LoopClock, _ids: SeededIds) -> None:
        replicas = Replicas(clock, "a", "b")
        await replicas.until("a")
        replicas.server.cut_off.add("a")
        await replicas.until()
        waited = await replicas.until("b")
        assert waited >= DURATION_SECONDS - TRUSTED_SECONDS - 4.0
        replicas.server.cut_off.clear()
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert replicas.leaders() == ["b"]
        replicas.close()

    run_virtual(main)


def test_a_server_that_is_away_for_a_moment_changes_no_leader() -> None:
    async def main(clock: LoopClock, _ids: SeededIds) -> None:
        replicas = Replicas(clock, "a", "b")
        await replicas.until("a")
        replicas.server.cut_off |= {"a", "b"}
        await asyncio.sleep(6.0)
        replicas.server.cut_off.clear()
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert replicas.leaders() == ["a"]
        replicas.close()

    run_virtual(main)


def test_who_resigns_is_followed_at_once() -> None:
    async def main(clock: LoopClock, _ids: SeededIds) -> None:
        replicas = Replicas(clock, "a", "b")
        await replicas.until("a")
        replicas.crash("a")
        await replicas.all["a"].resign()
        assert replicas.leaders() == []
        assert await replicas.until("b") <= 3.2
        replicas.close()

    run_virtual(main)
