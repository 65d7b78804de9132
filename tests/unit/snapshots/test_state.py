from __future__ import annotations

import pytest

from forerun.runtime.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from forerun.snapshots.engine.history import Version, new_version
from forerun.snapshots.engine.nodes import Ref
from forerun.snapshots.engine.state import Bounds, State
from forerun.snapshots.engine.values import Inline, Stored, Value

BOUNDS = Bounds(
    branches_max=3,
    branch_max_bytes=100,
    branches_max_bytes=150,
    branch_idle_seconds=60.0,
    line_max_bytes=1_000,
    line_retention_seconds=500.0,
)


def committed(
    state: State, branch: str, line: str, *, parent: str = "", at: float = 0.0, added: int = 10, root: Ref | None = None
) -> Version:
    version, _ = new_version(line=line, branch=branch, parent=parent, root=root, at_seconds=at, added_bytes=added)
    state.adopt(version)
    return version


def test_forking_twice_is_one_branch_and_another_base_is_refused() -> None:
    state = State(BOUNDS)
    version = committed(state, "first", "line").id
    assert state.fork("b", version, 0.0) == version
    state.write("b", [("key", Inline(b"1"))], 0.0)
    assert state.fork("b", version, 0.0) == version
    assert state.place(branch="b", version=None, now=0.0).changes == {"key": Inline(b"1")}
    with pytest.raises(AlreadyExists):
        state.fork("b", "", 0.0)
    with pytest.raises(AlreadyExists):
        state.fork("first", "", 0.0)
    with pytest.raises(NotFound):
        state.fork("c", "sha256:unknown", 0.0)


def test_changes_apply_all_or_none() -> None:
    state = State(BOUNDS)
    state.fork("b", "", 0.0)
    assert state.write("b", [("k", Inline(b"1234")), ("k", None), ("n", Inline(b""))], 0.0) == 2
    refused: list[list[tuple[str, Value | None]]] = [
        [("k", Inline(b"x")), ("", Inline(b"y"))],
        [("k", Inline(b"x")), ("large", Inline(b"y" * 100))],
        [("k", Inline(b"x")), ("blob", Stored("00" * 32, 200, blob=True))],
    ]
    for changes in refused:
        with pytest.raises((InvalidArgument, ResourceExhausted)):
            state.write("b", changes, 0.0)
        assert state.place(branch="b", version=None, now=0.0).changes == {"k": None, "n": Inline(b"")}


def test_the_limits_name_their_settings() -> None:
    state = State(BOUNDS)
    for branch in "abc":
        state.fork(branch, "", 0.0)
    with pytest.raises(ResourceExhausted, match="branches_max"):
        state.fork("d", "", 0.0)
    with pytest.raises(ResourceExhausted, match="branch_max_bytes"):
        state.write("a", [("k", Inline(b"x" * 100))], 0.0)
    state.write("a", [("k", Inline(b"x" * 90))], 0.0)
    with pytest.raises(ResourceExhausted, match="branches_max_bytes"):
        state.write("b", [("k", Inline(b"x" * 90))], 0.0)
    state.discard("a")
    state.write("b", [("k", Inline(b"x" * 90))], 0.0)
    with pytest.raises(ResourceExhausted, match="line_max_bytes"):
        state.check_room("line", 1_001)


def test_overwriting_a_key_counts_it_once() -> None:
    state = State(BOUNDS)
    state.fork("b", "", 0.0)
    for _ in range(10):
        assert state.write("b", [("k", Inline(b"x" * 90))], 0.0) == 91
    assert state.write("b", [("k", Inline(b"x"))], 0.0) == 2


def test_a_commit_is_recognised_and_its_branch_is_closed() -> None:
    state = State(BOUNDS)
    state.fork("b", "", 0.0)
    version = committed(state, "b", "line")
    assert state.committed("b", "line") == version
    assert state.head("line") == version.id
    with pytest.raises(FailedPrecondition):
        state.committed("b", "another line")
    with pytest.raises(NotFound, match="was committed"):
        state.write("b", [("k", Inline(b""))], 0.0)
    with pytest.raises(NotFound, match="not open"):
        state.write("never", [("k", Inline(b""))], 0.0)


def test_a_conflict_names_keys_and_branches_the_same_way_in_either_order() -> None:
    told = []
    for first, second in (("a", "b"), ("b", "a")):
        state = State(BOUNDS)
        state.fork("a", "", 0.0)
        state.fork("b", "", 0.0)
        head = committed(state, first, "line").id
        late = state.branch(second, 0.0)
        assert state.moved_head(late, "line") == head
        conflict = state.conflict(late, head, ["winner"])
        assert isinstance(conflict, Aborted)
        told.append((conflict.message, conflict.metadata["branches"], conflict.metadata["keys"]))
    assert told[0] == told[1]
    assert told[0][1:] == ("a,b", "winner")


def test_a_branch_whose_commit_is_being_stored_takes_no_writes() -> None:
    state = State(BOUNDS)
    state.fork("b", "", 0.0)
    state.branch("b", 0.0).committing = True
    with pytest.raises(FailedPrecondition):
        state.write("b", [("k", Inline(b""))], 0.0)
    assert state.drop_idle(1e9) == 0


def test_an_idle_branch_is_dropped_and_a_used_one_is_not() -> None:
    state = State(BOUNDS)
    state.fork("idle", "", 0.0)
    state.fork("used", "", 0.0)
    state.write("used", [("k", Inline(b""))], 30.0)
    assert state.drop_idle(60.0) == 1
    state.branch("used", 60.0)
    with pytest.raises(NotFound):
        state.branch("idle", 60.0)


def test_a_line_that_rests_for_long_is_let_go_but_an_open_branch_keeps_its_tree() -> None:
    state = State(BOUNDS)
    old_root, new_root = Ref("11" * 32, 1), Ref("22" * 32, 1)
    first = committed(state, "o1", "old", at=0.0, root=old_root)
    second = committed(state, "o2", "old", at=1.0, parent=first.id, root=old_root)
    recent = committed(state, "n1", "new", at=400.0, root=new_root)
    state.fork("b", second.id, 0.0)
    assert state.outlived(400.0) == []
    gone = state.outlived(502.0)
    assert gone == [first, second]
    assert state.remaining(gone) == [recent]
    state.forget(gone)
    assert state.head("old") == ""
    assert state.live([]) == ({old_root, new_root}, set())
    state.discard("b")
    assert state.live([]) == ({new_root}, set())
    assert state.live([recent]) == (set(), set())


def test_contents_of_open_branches_are_in_use() -> None:
    state = State(BOUNDS)
    blob = Stored("33" * 32, 9, blob=True)
    state.fork("b", "", 0.0)
    state.write("b", [("k", blob)], 0.0)
    assert state.live([]) == (set(), {blob})
