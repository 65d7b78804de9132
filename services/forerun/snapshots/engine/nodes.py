"""The nodes of a state's tree, and their form on disk.

A state with up to `LEAF_ENTRIES` keys is one leaf; a larger one is split by the digits of the hash of its keys. So a
tree follows from its content alone: equal states have equal roots, however they came about.

The first byte of every stored form is its version. Nodes are named by the SHA-256 of their form, which therefore must
not change within a version: `tests/contract/snapshots` holds examples.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.snapshots.engine.values import Inline, Stored, Value

LEAF_ENTRIES: Final = 32
"""Keys of one leaf. A commit of one key rewrites one leaf and the nodes above it: a few kilobytes."""

CHILDREN: Final = 16
"""One child for each hexadecimal digit of a key's hash."""

_FORMAT: Final = 1
_LEAF: Final = 0
_INNER: Final = 1
_INDEX: Final = 2

_INLINE, _CONTENT, _BLOB = 0, 1, 2
_HEAD: Final = struct.Struct(">BBI")
_ENTRY: Final = struct.Struct(">HBQ")
_CHILD: Final = struct.Struct(">BQ32s")
_SIZE: Final = struct.Struct(">Q")
_DIGEST_BYTES: Final = 32


class MalformedError(ValueError):
    """Bytes that are not the stored form of what they should be."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A subtree.

    Attributes:
        digest: Of its node, in hex.
        entries: Keys in it.
    """

    digest: str
    entries: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """Keys with their values."""

    entries: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Inner:
    """Subtrees by the next digit of the hash of their keys."""

    children: Mapping[int, Ref]


Node = Leaf | Inner


def encode(node: Node) -> bytes:
    """The stored form of a node."""
    if isinstance(node, Leaf):
        parts = [_HEAD.pack(_FORMAT, _LEAF, len(node.entries))]
        for key in sorted(node.entries):
            parts.append(_entry(key, node.entries[key]))
        return b"".join(parts)
    parts = [_HEAD.pack(_FORMAT, _INNER, len(node.children))]
    for digit in sorted(node.children):
        ref = node.children[digit]
        parts.append(_CHILD.pack(digit, ref.entries, bytes.fromhex(ref.digest)))
    return b"".join(parts)


def _entry(key: str, value: Value) -> bytes:
    name = key.encode()
    if isinstance(value, Inline):
        return _ENTRY.pack(len(name), _INLINE, len(value.data)) + name + value.data
    kind = _BLOB if value.blob else _CONTENT
    return _ENTRY.pack(len(name), kind, value.size_bytes) + name + bytes.fromhex(value.digest)


def decode(data: bytes) -> Node:
    """The node of a stored form.

    Raises:
        MalformedError: it is not one, or of a version that is not known here.
    """
    try:
        version, kind, count = _HEAD.unpack_from(data)
        if version != _FORMAT or kind not in (_LEAF, _INNER):
            raise MalformedError(f"node of unknown form {version}.{kind}")
        node, end = _leaf(data, count) if kind == _LEAF else _inner(data, count)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedError("node that is cut off or damaged") from error
    if end != len(data):
        raise MalformedError("node with bytes after its end")
    return node


def _leaf(data: bytes, count: int) -> tuple[Leaf, int]:
    entries: dict[str, Value] = {}
    at = _HEAD.size
    for _ in range(count):
        name_bytes, kind, size = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        key = data[at : at + name_bytes].decode()
        at += name_bytes
        length = size if kind == _INLINE else _DIGEST_BYTES
        body = data[at : at + length]
        if len(body) != length or kind > _BLOB:
            raise MalformedError("entry that is cut off or of an unknown kind")
        entries[key] = Inline(body) if kind == _INLINE else Stored(body.hex(), size, blob=kind == _BLOB)
        at += length
    return Leaf(entries), at


def _inner(data: bytes, count: int) -> tuple[Inner, int]:
    children: dict[int, Ref] = {}
    at = _HEAD.size
    for _ in range(count):
        digit, entries, digest = _CHILD.unpack_from(data, at)
        children[digit] = Ref(digest.hex(), entries)
        at += _CHILD.size
    return Inner(children), at


@dataclass(frozen=True, slots=True)
class Index:
    """The pieces of a content, in order.

    Attributes:
        size_bytes: Length of the whole.
        pieces: Their digests, in hex.
    """

    size_bytes: int
    pieces: tuple[str, ...]


def encode_index(index: Index) -> bytes:
    """The stored form of an index."""
    head = _HEAD.pack(_FORMAT, _INDEX, len(index.pieces)) + _SIZE.pack(index.size_bytes)
    return head + b"".join(bytes.fromhex(piece) for piece in index.pieces)


def decode_index(data: bytes) -> Index:
    """The index of a stored form.

    Raises:
        MalformedError: it is not one.
    """
    try:
        version, kind, count = _HEAD.unpack_from(data)
        (size,) = _SIZE.unpack_from(data, _HEAD.size)
    except struct.error as error:
        raise MalformedError("index that is cut off") from error
    at = _HEAD.size + _SIZE.size
    if version != _FORMAT or kind != _INDEX or len(data) != at + count * _DIGEST_BYTES:
        raise MalformedError("index of unknown form or length")
    pieces = tuple(data[start : start + _DIGEST_BYTES].hex() for start in range(at, len(data), _DIGEST_BYTES))
    return Index(size, pieces)
