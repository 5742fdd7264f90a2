"""Determines which blocks one holder holds: the blocks whose chains meet in one container. This module uses only the
indices of objects.

The holder of a block is the innermost object above its tensor, or a container farther up that leads to more objects on
the chains. For example, if a list has a thousand objects with a few tensors each, the list is the holder, not each of
the objects.
Guarantees: grouping runs in steps, and between steps only numbers are kept. Whether an object may hold many others is
determined once.
Does not read any object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

# A container farther up is the holder only if it leads to at least this many objects.
BRANCHES_MIN = 3
# The beginning of `how` for a block that a tensor's graph keeps.
SAVED = "saved "


@dataclass
class Group:
    """Blocks with one holder. `tensor` is the first tensor that leads to one of them, and `at` is the holder's index in
    its chain. `how` describes the step from the tensor to the block, if the tensor is not on the block."""

    tensor: int
    at: int
    how: str
    blocks: list[int] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    hows: set[str] = field(default_factory=set)
    # The blocks of each tensor.
    tensors: dict[int, list[int]] = field(default_factory=dict)

    def parted(self, most: int) -> list[Group]:
        """A group for each of the tensors, up to `most` of them. The last one has all further tensors."""
        groups: list[Group] = []
        for tensor, blocks in self.tensors.items():
            if len(groups) < most:
                groups.append(Group(tensor, self.at, self.how, [], self.threads, self.hows, {}))
            groups[-1].blocks += blocks
        return groups

    @property
    def is_of_graph(self) -> bool:
        """Whether nodes of several kinds have saved the blocks."""
        return self.how == SAVED or len(self.hows) > 1


@dataclass
class Way:
    """One block: its number, the step from a tensor to it (`how`), and the indices of the objects from a root to the
    tensor."""

    block: int
    how: str
    chain: list[int]
    # For a variable of a thread other than the main thread: the names of the variable and its function, and the thread.
    variable: Optional[tuple[str, str]] = None
    thread: int = 0


class Grouping:
    """Groups ways by holder."""

    def __init__(self, ways: list[Way]) -> None:
        self._ways = ways
        self._at = 0
        self._gathers: dict[int, bool] = {}
        self._groups: dict[object, Group] = {}
        # For each object, the objects that follow it on some chain.
        below: dict[int, set[int]] = {}
        for way in ways:
            for above, following in zip(way.chain, way.chain[1:]):
                below.setdefault(above, set()).add(following)
        self._branches = {number: len(following) for number, following in below.items()}

    def go(self, gathers: Callable[[int], bool], is_left: Callable[[], bool]) -> bool:
        """Continues while there is time. Returns whether all blocks are grouped. `gathers` returns whether an object
        may hold many others."""
        while self._at < len(self._ways):
            way = self._ways[self._at]
            at = self._holder(way, gathers, is_left)
            if at is None:
                return False
            # The graph holds the blocks that any of its nodes has saved.
            how = SAVED if way.how.startswith(SAVED) else way.how
            # Threads that run the same function count as one holder.
            key: object = (way.variable, how) if way.thread else (way.chain[at], how)
            group = self._groups.setdefault(key, Group(way.chain[-1], at, way.how))
            group.blocks.append(way.block)
            group.tensors.setdefault(way.chain[-1], []).append(way.block)
            group.hows.add(way.how)
            if way.thread:
                group.threads.add(way.thread)
            self._at += 1
        return True

    def _holder(self, way: Way, gathers: Callable[[int], bool], is_left: Callable[[], bool]) -> Optional[int]:
        """The holder's index in the chain; `None` if there is no time left to determine it."""
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
        """The groups. Groups with more blocks come first."""
        return sorted(self._groups.values(), key=lambda group: -len(group.blocks))
