"""Freshness against the plain definition of conflict, and the laws of resource keys."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.core.contracts import ResourceTemplate
from forerun.core.freshness import Generations, bumps, dependencies, fresh, recorded
from forerun.core.resources import ROOT, ancestors, conflict, conflicts, resolve

segments = st.sampled_from(["a", "b", "ab"])
keys = st.lists(segments, min_size=1, max_size=4).map("/".join) | st.just(ROOT)
key_sets = st.lists(keys, max_size=3)
fast = settings(max_examples=100, deadline=None)


@fast
@given(key_sets, st.lists(key_sets, max_size=4), st.lists(key_sets, max_size=4))
def test_a_result_is_fresh_exactly_when_no_conflicting_write_was_counted_since(
    reads: list[str], before: list[list[str]], since: list[list[str]]
) -> None:
    generations = Generations()
    for writes in before:
        generations.bump(writes)
    was = recorded(generations, reads)
    for writes in since:
        generations.bump(writes)
    written = any(conflicts(reads, writes) for writes in since)
    assert fresh(was, generations, 0.0, None).fresh is not written


@fast
@given(key_sets, st.lists(key_sets, min_size=1, max_size=12), st.integers(min_value=1, max_value=6))
def test_bounded_memory_never_calls_a_written_result_fresh(
    reads: list[str], since: list[list[str]], max_marks: int
) -> None:
    generations = Generations(max_marks=max_marks)
    was = recorded(generations, reads)
    for writes in since:
        generations.bump(writes)
    if any(conflicts(reads, writes) for writes in since):
        assert not fresh(was, generations, 0.0, None).fresh


@fast
@given(keys, keys)
def test_marks_meet_exactly_where_keys_conflict(read: str, write: str) -> None:
    assert bool(set(dependencies([read])) & set(bumps([write]))) is conflict(read, write)


@fast
@given(keys, keys)
def test_conflict_is_symmetric_and_follows_ancestry(one: str, other: str) -> None:
    assert conflict(one, other) is conflict(other, one)
    assert conflict(one, other) is (one == other or one in ancestors(other) or other in ancestors(one))


@fast
@given(st.text(max_size=12), st.text(max_size=12))
@example("a/b", "a")
@example("..", ".")
@example("*", "")
def test_an_id_reaches_its_own_resource_only(one: str, other: str) -> None:
    template = ResourceTemplate("orders/{id}")
    mine, theirs = resolve(template, {"id": one}), resolve(template, {"id": other})
    assert mine.startswith("orders")
    assert not conflict(mine, "users")
    if one and other:
        assert conflict(mine, theirs) is (one == other)


path_steps = st.lists(st.sampled_from(["a", "b", ".", "..", ""]), min_size=1, max_size=6).map("/".join)


@fast
@given(path_steps, st.sampled_from(["", "/work/", "/"]))
def test_paths_never_leave_their_tree_and_resolve_to_themselves(path: str, prefix: str) -> None:
    template = ResourceTemplate("files/{path:path}")
    key = resolve(template, {"path": prefix + path}, workspace_root="/work")
    assert conflict(key, "files")
    inside = key.removeprefix("files").removeprefix("/")
    if inside and not inside.startswith("/"):
        assert resolve(template, {"path": inside}, workspace_root="/work") == key
        assert resolve(template, {"path": f"/work/{inside}"}, workspace_root="/work") == key
