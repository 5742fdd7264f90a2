"""Which blocks one holder holds: chains that meet in one container, by the indices of their objects only.

The holder of a block is the innermost object above its tensor, or the container farther up that branches most: a list
of a thousand objects with a few tensors each, and not each of the objects.
Guarantees: works in steps, between which only numbers are kept; whether an object may gather others is determined once.
Refuses: to read an object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

# A container farther up is the holder if it leads to at least this many objects.
BRANCHES_MIN = 3
# How a block that a graph keeps is reached from the tensor with that graph.
SAVED = "saved "


@dataclass
class Group:
    """Blocks with one holder: the first tensor on one of them, and the holder's place in its chain. `how`: the step
    from the tensor to the block, if the tensor is not on it."""

    tensor: int
    at: int
    how: str
    blocks: list[int] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    hows: set[str] = field(default_factory=set)

    @property
    def is_of_graph(self) -> bool:
        """Whether nodes of several kinds have saved them."""
        return self.how == SAVED or len(self.hows) > 1


@dataclass
class Way:
    """A block, how a tensor leads to it, and the indices from a root to that tensor."""

    block: int
    how: str
    chain: list[int]
    # For a variable in another thread: which one, and the thread.
    variable: Optional[tuple[str, str]] = None
    thread: int = 0


class Grouping:
    """Makes groups of ways."""

    def __init__(self, ways: list[Way]) -> None:
        self._ways = ways
        self._at = 0
        self._gathers: dict[int, bool] = {}
        self._groups: dict[object, Group] = {}
        # How many objects of its ways an object leads to.
        below: dict[int, set[int]] = {}
        for way in ways:
            for above, following in zip(way.chain, way.chain[1:]):
                below.setdefault(above, set()).add(following)
        self._branches = {number: len(following) for number, following in below.items()}

    def go(self, gathers: Callable[[int], bool], is_left: Callable[[], bool]) -> bool:
        """Continues while there is time; returns whether all are grouped. `gathers`: whether an object may gather
        others."""
        while self._at < len(self._ways):
            way = self._ways[self._at]
            at = self._holder(way, gathers, is_left)
            if at is None:
                return False
            # Blocks saved by any node of a graph are held by that graph.
            how = SAVED if way.how.startswith(SAVED) else way.how
            # Threads that do the same hold the same.
            key: object = (way.variable, how) if way.thread else (way.chain[at], how)
            group = self._groups.setdefault(key, Group(way.chain[-1], at, way.how))
            group.blocks.append(way.block)
            group.hows.add(way.how)
            if way.thread:
                group.threads.add(way.thread)
            self._at += 1
        return True

    def _holder(self, way: Way, gathers: Callable[[int], bool], is_left: Callable[[], bool]) -> Optional[int]:
        """The holder's place in its chain; None if there is no time to determine it."""
        innermost = max(0, len(way.chain) - 2)
        best, most = innermost, max(self._branches.get(way.chain[innermost], 0), BRANCHES_MIN - 1)
        for at in range(innermost - 1, -1, -1):
            number = way.chain[at]
            if self._branches.get(number, 0) <= most:
                continue
            if number not in self._gathers:
                if not is_left():
                    return None
                self._gathers[number] = gathers(number)
            if self._gathers[number]:
                best, most = at, self._branches[number]
        return best

    def groups(self) -> list[Group]:
        """The groups, those of most blocks first."""
        return sorted(self._groups.values(), key=lambda group: -len(group.blocks))
