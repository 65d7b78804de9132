from __future__ import annotations

import pytest

from forerun.snapshots.engine import tree
from forerun.snapshots.engine.nodes import LEAF_ENTRIES, Inner, Leaf, MalformedError, Node, Ref, decode, encode
from forerun.snapshots.engine.tree import Difference
from forerun.snapshots.engine.values import Inline, Stored, Value


class Forest:
    """Nodes in memory, which counts what is loaded."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.loads = 0

    def load(self, digest: str) -> Node:
        self.loads += 1
        return decode(self.nodes[digest])

    def change(self, root: Ref | None, changes: dict[str, Value | None]) -> Ref | None:
        edit = tree.changed(root, changes, self.load)
        self.nodes.update((digest, data) for digest, (_, data) in edit.made.items())
        return edit.root

    def all(self, root: Ref | None) -> dict[str, Value]:
        return dict(tree.items(root, self.load))


def numbered(count: int, start: int = 0) -> dict[str, Value | None]:
    return {f"key {index}": Inline(b"%d" % index) for index in range(start, start + count)}


def test_a_deleted_key_is_gone_and_an_empty_value_is_not() -> None:
    forest = Forest()
    root = forest.change(None, {"empty": Inline(b""), "null": Inline(b"null"), "gone": Inline(b"x")})
    root = forest.change(root, {"gone": None})
    assert tree.get(root, "empty", forest.load) == Inline(b"")
    assert tree.get(root, "null", forest.load) == Inline(b"null")
    assert tree.get(root, "gone", forest.load) is None
    assert set(forest.all(root)) == {"empty", "null"}


def test_removing_the_last_key_gives_the_empty_state() -> None:
    forest = Forest()
    root = forest.change(None, numbered(100))
    assert forest.change(root, dict.fromkeys(numbered(100))) is None
    assert forest.change(None, {"never there": None}) is None


def test_the_old_tree_still_says_what_it_said() -> None:
    forest = Forest()
    old = forest.change(None, numbered(200))
    forest.change(old, {"key 7": Inline(b"other"), "key 8": None})
    assert tree.get(old, "key 7", forest.load) == Inline(b"7")
    assert tree.get(old, "key 8", forest.load) == Inline(b"8")


def test_equal_states_have_equal_roots_however_they_came_about() -> None:
    forest = Forest()
    at_once = forest.change(None, numbered(100))
    step_by_step = None
    for key, value in reversed(numbered(150).items()):
        step_by_step = forest.change(step_by_step, {key: value})
    step_by_step = forest.change(step_by_step, dict.fromkeys(numbered(50, start=100)))
    assert at_once == step_by_step


def test_a_tree_that_shrinks_folds_into_one_leaf() -> None:
    forest = Forest()
    root = forest.change(None, numbered(LEAF_ENTRIES + 1))
    assert root is not None
    assert isinstance(forest.load(root.digest), Inner)
    folded = forest.change(root, {"key 0": None})
    assert folded is not None
    assert isinstance(forest.load(folded.digest), Leaf)
    assert forest.all(folded).keys() == numbered(LEAF_ENTRIES, start=1).keys()


def test_a_change_of_one_key_makes_few_nodes_and_loads_few() -> None:
    forest = Forest()
    root = forest.change(None, numbered(10_000))
    before, forest.loads = len(forest.nodes), 0
    forest.change(root, {"key 77": Inline(b"other")})
    assert len(forest.nodes) - before <= 5
    assert forest.loads <= 5


def test_differences_tell_added_changed_and_deleted_and_skip_what_both_have() -> None:
    forest = Forest()
    old = forest.change(None, numbered(5_000))
    new = forest.change(old, {"key 1": None, "key 2": Inline(b"changed"), "new": Inline(b""), "key 3": Inline(b"3")})
    forest.loads = 0
    assert sorted(tree.differences(old, new, forest.load)) == [
        ("key 1", Difference.DELETED),
        ("key 2", Difference.CHANGED),
        ("new", Difference.ADDED),
    ]
    assert forest.loads < 40
    assert list(tree.differences(old, old, forest.load)) == []
    assert {kind for _, kind in tree.differences(None, old, forest.load)} == {Difference.ADDED}
    assert {kind for _, kind in tree.differences(old, None, forest.load)} == {Difference.DELETED}


def test_reachable_finds_every_node_and_content_of_all_roots() -> None:
    forest = Forest()
    stored = Stored("ab" * 32, 1_000_000, blob=True)
    old = forest.change(None, numbered(500))
    new = forest.change(old, {"blob": stored})
    assert old is not None
    assert new is not None
    nodes, contents = tree.reachable([old, new], forest.load)
    assert nodes == set(forest.nodes)
    assert contents == {stored}


@pytest.mark.parametrize("damage", ["short", "long", "form", "kind"])
def test_a_damaged_node_is_refused(damage: str) -> None:
    data = encode(Leaf({"key": Stored("00" * 32, 5, blob=False)}))
    broken = {
        "short": data[:-1],
        "long": data + b"x",
        "form": b"\x63" + data[1:],
        "kind": data[:8] + b"\x09" + data[9:],
    }[damage]
    with pytest.raises(MalformedError):
        decode(broken)
