"""What remains of the walk of an autograd graph between two slices, so that the next slice continues where the last one
stopped.

Guarantees: only numbers are kept, and no object of the program. A node is identified by the number of its creation and
its type. A place is the index of a node in this table. For each place there are the place above it and the edge that
leads from there to it, so that the node is found again from the tensor's own node. Following one edge is much cheaper
than a visit of the node.
If the tensor was replaced by one whose graph contains its graph, the walk continues below the new node.
"""

from __future__ import annotations

import heapq
from typing import Optional

# The number of a node's creation, and the id of its type.
Key = tuple[int, int]


class Trail:
    """The places of one graph that were found so far, and those that still wait for a visit."""

    def __init__(self) -> None:
        # Nodes below which nothing is left to visit.
        self.done: set[Key] = set()
        self.clear()

    def clear(self) -> None:
        """Discards the unfinished walk. Its nodes may be visited again."""
        self._places: dict[Key, int] = {}
        self.above: list[int] = []
        self.edge: list[int] = []
        self._top: Optional[Key] = None
        # What waits, the oldest node first; and what waits below the nodes of tensors that were replaced meanwhile.
        self.waiting: list[tuple[int, int]] = []
        self._replaced: dict[Key, list[tuple[int, int]]] = {}

    def begin(self, key: Key) -> int:
        """Begins or continues the walk below a tensor's own node. Returns its place."""
        if key[0] and key == self._top:
            return self._places[key]
        if self._top is not None and self._top[0] and self.waiting and key not in self._places:
            self._replaced[self._top], self.waiting = self.waiting, []
        else:
            self.clear()
        self._top = key
        return self._put(key, -1, 0)

    def push(self, key: Key, above: int, edge: int) -> None:
        """Records a node to which an edge leads. It is visited later, unless it is known."""
        if key in self.done:
            return
        # (Nodes without a number cannot be distinguished.)
        known = self._places.get(key) if key[0] else None
        if known is None:
            self._put(key, above, edge)
            return
        self.above[known], self.edge[known] = above, edge
        for waiting in self._replaced.pop(key, ()):
            heapq.heappush(self.waiting, waiting)

    def end(self) -> bool:
        """Nothing waits any more. Returns whether the whole graph was visited. If not, the next walk begins again."""
        is_whole = not self._replaced
        if is_whole:
            self.done.update(key for key in self._places if key[0])
        self.clear()
        return is_whole

    def way(self, place: int, known: dict[int, object]) -> list[int]:
        """The places from the nearest known place above down to this one; empty if there is no such place."""
        path = [place]
        while path[-1] not in known:
            if self.above[path[-1]] < 0:
                return []
            path.append(self.above[path[-1]])
        path.reverse()
        return path

    def _put(self, key: Key, above: int, edge: int) -> int:
        place = len(self.above)
        self._places[key] = place
        self.above.append(above)
        self.edge.append(edge)
        heapq.heappush(self.waiting, (key[0], place))
        return place
