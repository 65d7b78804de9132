"""Persistent trees: a change makes a new root and shares everything that it does not touch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.snapshots.engine.nodes import CHILDREN, LEAF_ENTRIES, Inner, Leaf, Node, Ref, encode
from forerun.snapshots.engine.values import Stored, Value, digest_of

Load = Callable[[str], Node]
"""Gives the node of a digest."""


class Difference(StrEnum):
    """How a key differs between two states."""

    ADDED = "added"
    CHANGED = "changed"
    DELETED = "deleted"


@dataclass(slots=True)
class Edit:
    """A new tree.

    Attributes:
        root: Its root; None is the empty state.
        made: The nodes that were made for it, by digest, with their stored form. All others are the old tree's.
    """

    root: Ref | None = None
    made: dict[str, tuple[Node, bytes]] = field(default_factory=dict)


def get(root: Ref | None, key: str, load: Load) -> Value | None:
    """The value of a key, or None where there is none."""
    if root is None:
        return None
    node = load(root.digest)
    path = _path(key)
    depth = 0
    while isinstance(node, Inner):
        child = node.children.get(path[depth])
        if child is None:
            return None
        node = load(child.digest)
        depth += 1
    return node.entries.get(key)


def changed(root: Ref | None, changes: Mapping[str, Value | None], load: Load) -> Edit:
    """The tree with some keys set and, where the value is None, removed."""
    edit = Edit()
    edit.root = _changed(root, {key: (_path(key), value) for key, value in changes.items()}, 0, load, edit)
    return edit


_Changes = dict[str, tuple[bytes, Value | None]]


def _changed(ref: Ref | None, changes: _Changes, depth: int, load: Load, edit: Edit) -> Ref | None:
    node = Leaf({}) if ref is None else load(ref.digest)
    if isinstance(node, Leaf):
        entries = dict(node.entries)
        for key, (_, value) in changes.items():
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
        return _built(entries, depth, edit)
    groups: dict[int, _Changes] = {}
    for key, change in changes.items():
        groups.setdefault(change[0][depth], {})[key] = change
    children = dict(node.children)
    for digit, group in groups.items():
        child = _changed(children.get(digit), group, depth + 1, load, edit)
        if child is None:
            children.pop(digit, None)
        else:
            children[digit] = child
    if sum(child.entries for child in children.values()) <= LEAF_ENTRIES:
        return _folded(children, edit, load)
    return _kept(Inner(children), edit)


def _folded(children: Mapping[int, Ref], edit: Edit, load: Load) -> Ref | None:
    """A subtree that became small enough for one leaf."""

    def made_or_stored(digest: str) -> Node:
        made = edit.made.get(digest)
        return load(digest) if made is None else made[0]

    entries: dict[str, Value] = {}
    for child in children.values():
        entries.update(items(child, made_or_stored))
    for child in children.values():
        edit.made.pop(child.digest, None)  # made on the way, and not part of the result
    return _kept(Leaf(entries), edit) if entries else None


def _built(entries: dict[str, Value], depth: int, edit: Edit) -> Ref | None:
    if not entries:
        return None
    if len(entries) <= LEAF_ENTRIES:
        return _kept(Leaf(entries), edit)
    parts: dict[int, dict[str, Value]] = {}
    for key, value in entries.items():
        parts.setdefault(_path(key)[depth], {})[key] = value
    children: dict[int, Ref] = {}
    for digit, part in parts.items():
        child = _built(part, depth + 1, edit)
        if child is not None:
            children[digit] = child
    return _kept(Inner(children), edit)


def _kept(node: Node, edit: Edit) -> Ref:
    data = encode(node)
    digest = digest_of(data)
    edit.made[digest] = (node, data)
    return Ref(digest, _count(node))


def _count(node: Node) -> int:
    if isinstance(node, Leaf):
        return len(node.entries)
    return sum(child.entries for child in node.children.values())


def items(root: Ref | None, load: Load) -> Iterator[tuple[str, Value]]:
    """All keys with their values, in no particular order."""
    if root is None:
        return
    node = load(root.digest)
    if isinstance(node, Leaf):
        yield from node.entries.items()
        return
    for child in node.children.values():
        yield from items(child, load)


def differences(old: Ref | None, new: Ref | None, load: Load) -> Iterator[tuple[str, Difference]]:
    """The keys that differ, in no particular order. Subtrees that both have are not looked at."""
    if old == new:
        return
    ours = None if old is None else load(old.digest)
    theirs = None if new is None else load(new.digest)
    if isinstance(ours, Inner) and isinstance(theirs, Inner):
        for digit in range(CHILDREN):
            yield from differences(ours.children.get(digit), theirs.children.get(digit), load)
        return
    before, after = dict(items(old, load)), dict(items(new, load))
    for key, value in after.items():
        if key not in before:
            yield key, Difference.ADDED
        elif before[key] != value:
            yield key, Difference.CHANGED
    for key in before:
        if key not in after:
            yield key, Difference.DELETED


def reachable(roots: Iterable[Ref], load: Load) -> tuple[set[str], set[Stored]]:
    """The digests of all nodes under some roots, and the contents that they name. Shared subtrees are walked once."""
    nodes: set[str] = set()
    contents: set[Stored] = set()
    waiting = list(roots)
    while waiting:
        ref = waiting.pop()
        if ref.digest in nodes:
            continue
        nodes.add(ref.digest)
        node = load(ref.digest)
        if isinstance(node, Inner):
            waiting.extend(node.children.values())
        else:
            contents.update(value for value in node.entries.values() if isinstance(value, Stored))
    return nodes, contents


def _path(key: str) -> bytes:
    """The way to a key: the hexadecimal digits of its hash, one a byte."""
    digest = hashlib.sha256(key.encode()).digest()
    return bytes(digit for octet in digest for digit in (octet >> 4, octet & 15))
