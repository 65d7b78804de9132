"""A model server follows its platform: the pool's cap, the kill switch, erasures; and what happens while it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from forerun.core import limits
from forerun.core.tokens.ceiling import Ceiling, CeilingSource
from forerun.runtime.bus import Bus
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import LoopClock
from forerun.runtime.erasures import ServerReport, erasure_content
from forerun.runtime.errors import ErrorReason, Unavailable
from forerun.runtime.ids import SeededIds
from forerun.runtime.switch import Switch
from forerun.runtime.topology import CAPACITY, ERASURES, SERVERS
from forerun.runtime.virtual import run_virtual
from forerun.serving.backend.orders import BOUNDS, Bounds, known_erasures
from forerun.serving.governed import LOOK_SECONDS, REPORT_SECONDS, Following, Governed
from forerun.serving.orders import OrderFolder
from forerun.v1 import capacity_pb2

SILENT = 30.0


class Server:
    """A loop that erases, unless it is down."""

    def __init__(self) -> None:
        self.down = False
        self.let = asyncio.Event()
        self.let.set()
        self.erased: list[tuple[str, str]] = []

    async def erase(self, tenant: str, erasure: str) -> Mapping[str, int]:
        if self.down:
            raise Unavailable(ErrorReason.PEER_UNAVAILABLE, "its process is gone")
        await self.let.wait()
        self.erased.append((tenant, erasure))
        return {"histories": 2, "tokens": 40, "files": 1}


class Stage:
    """A model server at a broker in memory."""

    def __init__(self, folder: Path, clock: LoopClock, pool: str = "pool", *, obeys: bool = True) -> None:
        self.clock = clock
        self.folder = folder
        self.broker = MemoryBroker(clock)
        self.operator = MemoryBus(self.broker, "operator")
        self.orchestrator = MemoryBus(self.broker, "orchestrator")
        self.reachable = True
        self.connections: list[MemoryBus] = []
        self.server = Server()
        self.said: list[str] = []
        self.governed = Governed(
            Following(name="one", profile="toy", pool=pool, obeys=obeys, silent_seconds=SILENT),
            self.connect, OrderFolder(folder), self.server, clock=clock, say=self.said.append,
        )  # fmt: skip
        self.switch = Switch(self.orchestrator, clock, lambda: None)

    async def connect(self) -> Bus:
        if not self.reachable:
            raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, "nobody answers")
        self.connections.append(MemoryBus(self.broker, "serving"))
        return self.connections[-1]

    async def cap(self, depth: int | None, pool: str = "pool") -> None:
        content = capacity_pb2.PoolCapacity(pool=pool, token_depth=depth).SerializeToString()
        await self.operator.kv(CAPACITY).put(pool, content)

    async def erase(self, tenant: str, erasure: str) -> None:
        await self.orchestrator.kv(ERASURES).put(tenant, erasure_content(erasure, self.clock.now()))

    async def report(self) -> ServerReport | None:
        entry = await self.orchestrator.kv(SERVERS).get("one")
        return None if entry is None else ServerReport.read(entry.value)

    def ordered(self) -> Bounds:
        """What the models are told."""
        return Bounds.read((self.folder / BOUNDS).read_text())

    def has_said(self, words: str) -> int:
        return sum(words in one for one in self.said)


def test_the_cap_of_its_own_pool_is_handed_on_and_taken_back(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        assert stage.ordered() == Bounds(), "without any message there is no cap"
        await stage.cap(3)
        await stage.cap(1, "pool-2")
        assert await stage.governed.hear(5.0)
        assert stage.ordered() == Bounds(Ceiling(3, CeilingSource.POOL)), "before any model is loaded"
        running = asyncio.create_task(stage.governed.run())
        await stage.cap(0)
        await asyncio.sleep(0.1)
        assert stage.ordered() == Bounds(Ceiling(0, CeilingSource.POOL))
        report = await stage.report()
        assert report is not None
        assert (report.name, report.profile, report.depth, report.source) == ("one", "toy", 0, "pool")
        await stage.operator.kv(CAPACITY).put("pool", b"\xff")
        await asyncio.sleep(0.1)
        assert stage.ordered() == Bounds(Ceiling(0, CeilingSource.POOL)), "what cannot be read changes nothing"
        assert stage.has_said("cannot be read") == 1
        await stage.cap(None)
        await asyncio.sleep(0.1)
        assert stage.ordered() == Bounds(), "the pool has no model"
        await stage.cap(2)
        await stage.operator.kv(CAPACITY).delete("pool")
        await asyncio.sleep(0.1)
        assert stage.ordered() == Bounds(), "the pool is gone"
        running.cancel()
        await stage.governed.close()
        assert await stage.report() is None, "it serves no more"

    run_virtual(scenario)


def test_the_kill_switch_stops_drafts_within_a_second_for_all_or_for_a_tenant(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        await stage.cap(3)
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        await stage.switch.set("acme", on=False, reason="test")
        await asyncio.sleep(0.5)
        assert stage.ordered() == Bounds(Ceiling(3, CeilingSource.POOL), frozenset({"acme"}))
        await stage.switch.set("", on=False, reason="test")
        await asyncio.sleep(0.5)
        assert stage.ordered().ceiling == Ceiling(0, CeilingSource.SWITCH)
        await stage.switch.set("", on=True, reason="test")
        await stage.switch.set("acme", on=True, reason="test")
        await asyncio.sleep(0.5)
        assert stage.ordered() == Bounds(Ceiling(3, CeilingSource.POOL))
        running.cancel()

    run_virtual(scenario)


def test_while_the_broker_is_away_what_was_heard_last_holds_and_a_long_silence_is_said(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        await stage.cap(3)
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        await asyncio.sleep(2 * SILENT)
        assert stage.ordered().ceiling == Ceiling(3, CeilingSource.POOL), "no news from a broker that is there"
        stage.broker.go_down()
        stage.reachable = False
        await asyncio.sleep(SILENT - 2 * LOOK_SECONDS)
        assert stage.ordered().ceiling == Ceiling(3, CeilingSource.POOL)
        await asyncio.sleep(4 * LOOK_SECONDS)
        assert stage.ordered().ceiling == Ceiling(3, CeilingSource.UNHEARD)
        assert stage.has_said("at most 3 tokens a pass (unheard)") == 1
        stage.broker.come_up()
        await stage.cap(5)
        stage.reachable = True
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stage.ordered().ceiling == Ceiling(5, CeilingSource.POOL)
        assert len(stage.connections) == 2, "connected anew: the broker may have another address"
        running.cancel()

    run_virtual(scenario)


def test_a_cap_that_was_taken_back_while_nobody_heard_it_is_gone(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        await stage.cap(3)
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        stage.broker.go_down()
        stage.reachable = False
        await asyncio.sleep(SILENT + 2 * LOOK_SECONDS)
        assert stage.ordered().ceiling == Ceiling(3, CeilingSource.UNHEARD)
        stage.broker.come_up()
        await stage.operator.kv(CAPACITY).delete("pool")
        stage.reachable = True
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stage.ordered() == Bounds(), "the pool is gone"
        running.cancel()

    run_virtual(scenario)


def test_a_switch_that_is_off_is_never_lifted_by_connecting_anew(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        await stage.switch.set("acme", on=False, reason="test")
        await stage.switch.set("", on=False, reason="test")
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        stage.broker.go_down()
        stage.reachable = False
        await asyncio.sleep(SILENT + 2 * LOOK_SECONDS)
        stage.broker.come_up()
        stage.reachable = True
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stage.ordered() == Bounds(Ceiling(0, CeilingSource.SWITCH), frozenset({"acme"}))
        said = [one for one in stage.said if one.startswith("drafts are")]
        assert [one.partition("(")[2].partition(")")[0] for one in said] == ["switch", "unheard", "switch"], said
        running.cancel()

    run_virtual(scenario)


def test_an_erasure_that_waits_for_a_model_to_be_loaded_holds_up_nothing_else(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        stage.server.let.clear()
        await stage.erase("acme", "1")
        await asyncio.sleep(LOOK_SECONDS)
        stage.broker.go_down()
        stage.reachable = False
        await asyncio.sleep(SILENT + 2 * LOOK_SECONDS)
        assert stage.ordered().ceiling.source is CeilingSource.UNHEARD
        stage.broker.come_up()
        stage.reachable = True
        await stage.cap(2)
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stage.ordered().ceiling == Ceiling(2, CeilingSource.POOL)
        stage.server.let.set()
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stage.server.erased == [("acme", "1")]
        running.cancel()

    run_virtual(scenario)


def test_an_erasure_reaches_the_loop_again_and_again_until_it_is_done_and_the_server_says_what_went(
    tmp_path: Path,
) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        stage.server.down = True
        await stage.erase("acme", "1")
        await asyncio.sleep(10.0)
        assert known_erasures(tmp_path) == {"acme": "1"}, "a loop that is started anew knows it"
        assert stage.has_said("acme is not erased yet: its process is gone") == 1
        report = await stage.report()
        assert report is not None
        assert report.erased == {}
        stage.server.down = False
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stage.server.erased == [("acme", "1")]
        report = await stage.report()
        assert report is not None
        done = report.erased["1"]
        assert (done.histories, done.tokens, done.files) == (2, 40, 1)
        await stage.erase("acme", "2")
        await asyncio.sleep(0.1)
        assert stage.server.erased == [("acme", "1"), ("acme", "2")], "at once"
        stage.server.let.clear()
        await stage.erase("acme", "3")
        await asyncio.sleep(0.1)
        await stage.erase("acme", "4")
        await asyncio.sleep(0.1)
        stage.server.let.set()
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stage.server.erased[2:] == [("acme", "3"), ("acme", "4")], "one that came meanwhile is not lost"
        running.cancel()

    run_virtual(scenario)


def test_a_server_that_comes_back_knows_what_was_erased_before_it_loads_anything(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        assert known_erasures(tmp_path) is None, "nothing that was saved is read"
        many = limits.ERASURES_REPORTED + 5
        for number in range(many):
            await stage.erase(f"tenant {number}", f"{number:04}")
        await stage.orchestrator.kv(ERASURES).put("odd", b"[]")
        assert await stage.governed.hear(5.0)
        known = known_erasures(tmp_path)
        assert known is not None
        assert len(known) == many + 1
        assert known["odd"], "what cannot be read is an erasure"
        running = asyncio.create_task(stage.governed.run())
        await asyncio.sleep(REPORT_SECONDS + 1.0)
        assert len(stage.server.erased) == limits.ERASURES_REPORTED, "the others are gone with the start"
        report = await stage.report()
        assert report is not None
        assert {known["odd"], f"{many - 1:04}"} <= set(report.erased)
        running.cancel()

    run_virtual(scenario)


def test_a_server_whose_broker_is_silent_serves_without_what_was_saved_and_hears_it_later(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        stage.reachable = False
        await stage.erase("acme", "1")
        assert not await stage.governed.hear(5.0)
        assert known_erasures(tmp_path) is None
        assert stage.has_said("nobody knows which are erased") == 1
        assert stage.has_said("not followed yet") == 1, "said once"
        running = asyncio.create_task(stage.governed.run())
        await asyncio.sleep(SILENT)
        assert stage.ordered().ceiling == Ceiling(None, CeilingSource.UNHEARD)
        stage.reachable = True
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert known_erasures(tmp_path) == {"acme": "1"}
        assert stage.server.erased == [("acme", "1")]
        assert stage.ordered() == Bounds()
        running.cancel()

    run_virtual(scenario)


def test_reports_stay_within_what_the_store_takes(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        for number in range(limits.ERASURES_REPORTED + 10):
            await stage.erase(f"{number:03}" + 200 * "\N{CJK UNIFIED IDEOGRAPH-4E2D}", f"{number:036}")
        await asyncio.sleep(REPORT_SECONDS + 1.0)
        report = await stage.report()
        assert report is not None
        assert len(report.erased) == limits.ERASURES_REPORTED
        assert not stage.has_said("cannot report")
        running.cancel()

    run_virtual(scenario)


def test_what_the_models_could_not_be_told_they_are_told_later(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock)
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        await asyncio.sleep(0.1)
        full = [tmp_path / f"{name}.new" for name in (BOUNDS, "erasures.json")]
        for one in full:
            one.mkdir()
        await stage.cap(2)
        await stage.erase("acme", "1")
        await asyncio.sleep(5 * LOOK_SECONDS)
        assert stage.ordered() == Bounds()
        assert stage.has_said("the models cannot be told how deep") == 1, "once"
        assert stage.has_said("the models cannot be told whom") == 1
        assert stage.server.erased == [], "not done before all versions of the loop know it"
        for one in full:
            one.rmdir()
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stage.ordered() == Bounds(Ceiling(2, CeilingSource.POOL))
        assert known_erasures(tmp_path) == {"acme": "1"}
        assert stage.server.erased == [("acme", "1")]
        assert not running.done()
        running.cancel()

    run_virtual(scenario)


def test_of_an_engine_that_speculates_itself_it_is_said_that_it_does_not_obey(tmp_path: Path) -> None:
    async def scenario(clock: LoopClock, _ids: SeededIds) -> None:
        stage = Stage(tmp_path, clock, obeys=False)
        await stage.cap(3)
        await stage.governed.hear(5.0)
        running = asyncio.create_task(stage.governed.run())
        await asyncio.sleep(0.1)
        report = await stage.report()
        assert report is not None
        assert (report.depth, report.source) == (None, "engine")
        assert stage.has_said("does not obey") == 1
        running.cancel()

    run_virtual(scenario)
