"""Mark and sweep: which stored objects nothing refers to.

Marking takes the trees and contents that are in use and follows them. Sweeping may take what was not marked and was not
touched since a cut-off before the marking began: whoever stores, reuses or reads an object touches it first, so that
nothing which came into use in the meantime is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from forerun.snapshots.engine.nodes import Index, Ref
from forerun.snapshots.engine.tree import Load, reachable
from forerun.snapshots.engine.values import PIECE_BYTES, Stored

INDEX_SUFFIX: Final = ".index"
"""The index of a content has the content's digest with this at the end as its name; all else is named by digest."""


@dataclass(frozen=True, slots=True)
class Object:
    """A stored object.

    Attributes:
        name: Its name.
        size_bytes: Its length.
        touched_at: Epoch seconds of the last use.
    """

    name: str
    size_bytes: int
    touched_at: float


def name_of(content: Stored) -> str:
    """The object from which a content is read: itself where it is one piece, else its index."""
    return content.digest if content.size_bytes <= PIECE_BYTES else content.digest + INDEX_SUFFIX


def marked(
    roots: Iterable[Ref], contents: Iterable[Stored], load: Load, load_index: Callable[[str], Index]
) -> set[str]:
    """The names of all objects that some trees and contents need.

    Args:
        roots: The trees in use.
        contents: Contents in use beside those that the trees name.
        load: Gives the node of a digest.
        load_index: Gives the index of a content's digest.
    """
    names, named = reachable(roots, load)
    for digest, size in {(content.digest, content.size_bytes) for content in (*named, *contents)}:
        if size <= PIECE_BYTES:
            names.add(digest)
        else:
            names.add(digest + INDEX_SUFFIX)
            names.update(load_index(digest).pieces)
    return names


def garbage(objects: Iterable[Object], in_use: set[str], untouched_since: float) -> list[Object]:
    """The objects that may be removed."""
    return [one for one in objects if one.name not in in_use and one.touched_at < untouched_since]
