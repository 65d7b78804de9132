"""Any order of calls, collections and restarts: a tenant's snapshots behave like a dictionary of dictionaries."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import Aborted, AlreadyExists, NotFound
from forerun.snapshots.cache import NodeCache
from forerun.snapshots.engine.state import Bounds
from forerun.snapshots.engine.tree import Difference
from forerun.snapshots.engine.values import Inline, Value
from forerun.snapshots.tenant import Room, Tenant, open_tenant

BOUNDS = Bounds(
    branches_max=100,
    branch_max_bytes=10**9,
    branches_max_bytes=10**9,
    branch_idle_seconds=1e9,
    line_max_bytes=10**9,
    line_retention_seconds=1e9,
)
# Nothing is protected by its age: what survives a collection is protected by being in use.
ROOM = Room(tenant_max_bytes=10**9, blob_max_bytes=10**9, grace_seconds=-3600.0)

# In memory where the machine has such a folder: durability is not what is tried here.
SHM = Path("/dev/shm")

ALL_KEYS = [f"key {number}" for number in range(40)]
KEYS = st.sampled_from(ALL_KEYS)
# (byte, how often): values that lie in a node, beside it, and in several pieces, some with a common beginning.
VALUES = st.one_of(
    st.none(), st.tuples(st.sampled_from([b"x", b"y"]), st.sampled_from([0, 1, 256, 257, 40_000, 40_001]))
)
CHANGES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=40)
Changes = list[tuple[str, tuple[bytes, int] | None]]


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(dir=SHM if SHM.is_dir() else None))
        self.tenant = self.opened()
        self.states: dict[str, dict[str, bytes]] = {"": {}}
        self.open: dict[str, tuple[str, dict[str, bytes]]] = {}
        self.done: dict[str, tuple[str, str]] = {}
        self.heads: dict[str, str] = {}
        self.count = 0

    def opened(self) -> Tenant:
        return open_tenant(self.folder, bounds=BOUNDS, room=ROOM, clock=SystemClock(), cache=NodeCache(8))()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.tenant.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        # Mostly from heads, because only such branches can be committed.
        version = data.draw(
            st.sampled_from([*self.heads.values(), *self.heads.values(), *self.states]), label="version"
        )
        self.count += 1
        branch = f"b{self.count}"
        assert self.tenant.fork(branch, version) == version
        self.open[branch] = (version, dict(self.states[version]))

    @precondition(lambda self: self.open or self.done)
    @rule(data=st.data())
    def fork_again(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from([*self.open, *self.done]), label="branch")
        version = data.draw(st.sampled_from(list(self.states)), label="version")
        if branch in self.open and self.open[branch][0] == version:
            assert self.tenant.fork(branch, version) == version
        else:
            with pytest.raises(AlreadyExists):
                self.tenant.fork(branch, version)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), drawn=CHANGES, blob=st.booleans())
    def write(self, data: st.DataObject, drawn: Changes, blob: bool) -> None:
        self.write_to(data.draw(st.sampled_from(list(self.open)), label="branch"), drawn, blob)

    @rule(line=st.sampled_from(["one", "two"]), drawn=CHANGES, blob=st.booleans())
    def step(self, line: str, drawn: Changes, blob: bool) -> None:
        self.count += 1
        branch, base = f"b{self.count}", self.heads.get(line, "")
        self.tenant.fork(branch, base)
        self.open[branch] = (base, dict(self.states[base]))
        self.write_to(branch, drawn, blob)
        self.commit_to(branch, line)

    def write_to(self, branch: str, drawn: Changes, blob: bool) -> None:
        changes = [(key, None if value is None else value[0] * value[1]) for key, value in drawn]
        wanted: list[tuple[str, Value | None]] = []
        for key, body in changes:
            if body is not None and blob:
                wanted.append((key, self.loop.run_until_complete(self.tenant.put_blob(chunks(body)))))
            else:
                wanted.append((key, None if body is None else Inline(body)))
        self.loop.run_until_complete(self.tenant.write(branch, wanted))
        state = self.open[branch][1]
        for key, body in changes:
            if body is None:
                state.pop(key, None)
            else:
                state[key] = body

    @precondition(lambda self: self.open)
    @rule(data=st.data(), line=st.sampled_from(["one", "two"]))
    def commit(self, data: st.DataObject, line: str) -> None:
        branch = data.draw(st.sampled_from(list(self.open)), label="branch")
        if self.open[branch][0] != self.heads.get(line, ""):
            with pytest.raises(Aborted):
                self.loop.run_until_complete(self.tenant.commit(branch, line))
        else:
            self.commit_to(branch, line)

    def commit_to(self, branch: str, line: str) -> None:
        version = self.loop.run_until_complete(self.tenant.commit(branch, line))
        self.states[version] = self.open.pop(branch)[1]
        self.heads[line] = version
        self.done[branch] = (line, version)

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(list(self.done)), label="branch")
        line, version = self.done[branch]
        assert self.loop.run_until_complete(self.tenant.commit(branch, line)) == version
        with pytest.raises(NotFound):
            self.loop.run_until_complete(self.tenant.write(branch, [("k", Inline(b""))]))

    @precondition(lambda self: len(self.open) > 3)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(list(self.open)), label="branch")
        self.tenant.discard(branch)
        del self.open[branch]
        with pytest.raises(NotFound):
            self.loop.run_until_complete(self.tenant.commit(branch, "one"))

    @rule()
    def collect(self) -> None:
        seen = self.loop.run_until_complete(self.tenant.collect(dry_run=True))
        removed = self.loop.run_until_complete(self.tenant.collect(dry_run=False))
        assert removed == seen
        assert self.loop.run_until_complete(self.tenant.collect(dry_run=True)).objects == 0
        self.compare_everything()

    @rule()
    def restart(self) -> None:
        self.loop.run_until_complete(self.tenant.close())
        self.tenant = self.opened()
        self.open.clear()
        self.compare_everything()

    @rule(data=st.data())
    def diff(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.states)), label="one")
        other = data.draw(st.sampled_from(list(self.states)), label="other")
        old, new = self.states[one], self.states[other]
        found = dict(self.loop.run_until_complete(self.tenant.diff(one, other)))
        # The same bytes, once given as a value and once as a blob, are read differently, so they count as changed.
        same_bytes = {key for key, kind in found.items() if kind is Difference.CHANGED and old.get(key) == new.get(key)}
        expected = dict.fromkeys(new.keys() - old.keys(), Difference.ADDED)
        expected |= dict.fromkeys(old.keys() - new.keys(), Difference.DELETED)
        expected |= {key: Difference.CHANGED for key in old.keys() & new.keys() if old[key] != new[key]}
        assert {key: kind for key, kind in found.items() if key not in same_bytes} == expected

    @invariant()
    def heads_are_those_of_the_model(self) -> None:
        if hasattr(self, "loop"):
            for line in ("one", "two"):
                assert self.tenant.head(line) == self.heads.get(line, "")

    def compare_everything(self) -> None:
        for version, state in self.states.items():
            assert {key: self.value(None, version, key) for key in ALL_KEYS} == with_absent(state)
        for branch, (_, state) in self.open.items():
            assert {key: self.value(branch, None, key) for key in ALL_KEYS} == with_absent(state)

    def value(self, branch: str | None, version: str | None, key: str) -> bytes | None:
        found = self.loop.run_until_complete(self.tenant.read(branch=branch, version=version, key=key))
        return self.loop.run_until_complete(whole(self.tenant, found)) if isinstance(found, str) else found


def with_absent(state: dict[str, bytes]) -> dict[str, bytes | None]:
    return {key: state.get(key) for key in ALL_KEYS}


async def chunks(data: bytes):  # type: ignore[no-untyped-def]
    yield data[: len(data) // 2]
    yield data[len(data) // 2 :]


async def whole(tenant: Tenant, digest: str) -> bytes:
    return b"".join([chunk async for chunk in tenant.get_blob(digest)])


Machine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestSnapshots = Machine.TestCase
