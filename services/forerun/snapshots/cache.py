"""Nodes that were read lately."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from forerun.snapshots.engine.nodes import Node
from forerun.snapshots.engine.tree import Load


class NodeCache:
    """Keeps decoded nodes, the least recently used going first. May be used from several threads.

    A node never changes, because its digest is its name, so nothing here can be stale.

    Args:
        max_nodes: How many are kept; a node takes about 10 KB.
    """

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self._nodes: OrderedDict[str, Node] = OrderedDict()
        self._lock = Lock()

    def through(self, load: Load) -> Load:
        """A loader that asks the cache first."""

        def cached(digest: str) -> Node:
            with self._lock:
                node = self._nodes.get(digest)
                if node is not None:
                    self._nodes.move_to_end(digest)
                    return node
            node = load(digest)
            with self._lock:
                self._nodes[digest] = node
                if len(self._nodes) > self._max_nodes:
                    self._nodes.popitem(last=False)
            return node

        return cached
