"""Finds the holders of blocks without a chain. For this it finds their tensors on the whole heap, the referrers of
these tensors, and tensors that only C++ holds.

Guarantees: between two slices only numbers and texts are kept. The newest objects are visited first. The others are
skipped if each block has an explanation by then, which is a cycle, a known pattern, or C++ as the only holder.
The search ends when its stages have used their share of the time.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, Optional

from memctl_agent._holders import _cpp, _cycles, _reading, _words
from memctl_agent._holders._graph import Graph
from memctl_agent._holders._loose import Loose
from memctl_agent._holders._memory import Memory
from memctl_agent._holders._slice import Slice

# Maximum number of objects whose referrers are searched at once.
WANTED_MAX = 256
# Maximum number of walks for referrers: of the tensors, of their referrers, and so on.
CLIMBS_MAX = 3
# Maximum number of slices to wait for the main thread's answer about autocast.
AUTOCAST_WAITS_MAX = 80


class InHeap:
    """The search of one request; see the module's documentation."""

    def __init__(
        self,
        native: Any,
        blocks: list[tuple[int, int]],
        missing: Callable[[], set[int]],
        adopt: Callable[[Slice, Any, int], bool],
    ) -> None:
        # `missing` returns the blocks without a known holder. `adopt` takes a referrer and returns whether the walk
        # from the roots continues from it.
        self._native, self._blocks, self._missing, self._adopt = native, blocks, missing, adopt
        # One native walk for tensors and one for their referrers.
        self.of_tensors: Any = None
        self.of_holders: Any = None
        self.loose = Loose()
        # Whether all tensors were seen.
        self.is_seen = False
        self._is_rest = False
        self._climbs = 0
        self._targets: Optional[list[int]] = None
        self._put_off: set[int] = set()
        # Blocks of weights that only C++ holds, and the number of slices that waited for the main thread's answer about
        # autocast.
        self._weights: set[int] = set()
        self._autocast = _cpp.Autocast()
        self._waits = 0

    def close(self) -> None:
        """Ends the search. After this, the search and this object do not refer to each other."""
        self._missing, self._adopt = set, lambda *_: False

    @property
    def has_jumped(self) -> bool:
        """Whether objects may have been missed."""
        return any(heap.counts()[1] for heap in (self.of_tensors, self.of_holders) if heap is not None)

    @property
    def objects(self) -> int:
        """The number of visited objects."""
        return sum(heap.counts()[0] for heap in (self.of_tensors, self.of_holders) if heap is not None)

    def tensors(self, now: Slice, collector: str) -> bool:
        """Finds all tensors on the remaining blocks. Returns whether this stage is over."""
        missing = self._missing()
        if not missing:
            return True
        if self.of_tensors is None:
            self.of_tensors = self._native.Heap(self._blocks)
            if not self.of_tensors.can_tell():
                return True
        is_done, found = self.of_tensors.tensors(now.rules, now.left_us() // 2)
        self.loose.taken.update(self.of_tensors.taken())
        before, held_once, candidates = len(self.loose.tensors), _held_once(found), []
        for (block, tensor), is_once in zip(found, held_once):
            if block in missing:
                self.loose.tensors.setdefault(block, []).append(id(tensor))
                if is_once and block not in self.loose.patterns:
                    candidates.append((block, tensor))
        del found
        if candidates:
            self._note_patterns(now, candidates, missing - set(self.loose.patterns))
        self.is_seen = is_done
        # The newest objects come first. Once each block has a tensor, the remaining objects are not needed. If the
        # collector does not free cycles, the search for cycles begins as soon as most blocks have tensors.
        may_be_cycles = collector != "on"
        known = len(self.loose.tensors)
        is_enough = may_be_cycles and known == before and 2 * known >= len(missing)
        return is_done or (not self._is_rest and (is_enough or self.loose.have_tensors(missing)))

    def rest(self, now: Slice, collector: str) -> bool:
        """Finds the remaining tensors, if the stage `tensors` ended early and no cycle was found. Returns whether this
        stage is over."""
        if self.is_seen or self.loose.cycles or self.loose.are_explained(self._missing()):
            return True
        self._is_rest, before = True, self.loose.count()
        is_done = self.tensors(now, collector)
        # The referrers of the new tensors were not searched.
        self.loose.are_holders_seen = self.loose.are_holders_seen and before == self.loose.count()
        return is_done

    def _note_patterns(self, now: Slice, candidates: list[tuple[int, Any]], missing: set[int]) -> None:
        """Reads the graphs of tensors without a known holder, to find the reason why they are live. One such reason is
        a gradient that has a graph, if the gradient's own parameter is a leaf of this graph."""
        memory = Memory()
        left = set(missing)
        graph = Graph(now.torch, now.tensors, memory, now.is_left)
        try:
            for block, tensor in candidates:
                # A parameter has its gradient itself, so its graph need not be walked.
                if graph.has_graphed_gradient(tensor):
                    self.loose.patterns[block] = "create_graph"
                    left.discard(block)
            graph.walk([tensor for _, tensor in candidates], left)
            for number in graph.graphed:
                self.loose.patterns[candidates[number][0]] = "create_graph"
            for block, (number, _) in graph.found.items():
                if number in graph.graphed:
                    self.loose.patterns[block] = "create_graph"
            for block, tensor in candidates:
                if block not in self.loose.patterns and _cpp.is_of_cpp_alone(now.torch, tensor):
                    self.loose.alone.add(block)
                    if self._autocast.may_keep(now.torch, tensor):
                        self._weights.add(block)
        finally:
            graph.close()
            memory.close()
            candidates.clear()

    def holders(self, now: Slice) -> bool:
        """Finds the referrers of the tensors on the heap, and their referrers. Returns whether this stage is over."""
        missing = self._missing()
        if self.loose.are_explained(missing) or not self.of_tensors.can_tell():
            return True
        if self.of_holders is None:
            self.of_holders = self._native.Heap(self._blocks)
        if not self.loose.tensors:
            # There is no tensor on any of these blocks, so there are no referrers.
            self.loose.are_holders_seen = True
            return True
        if self._targets is None:
            known = self.loose.alone.union(self.loose.patterns)
            loose = [ids for block, ids in self.loose.tensors.items() if block not in known]
            self._targets = sorted({at for ids in loose for at in ids})[:WANTED_MAX]
            if not self._targets:
                self.loose.are_holders_seen = True
                return True
            self.of_holders.rewind()
        is_done, found = self.of_holders.holders(now.rules, self._targets, now.left_us() // 2)
        while found:
            holder, held = found.pop()
            if now.is_left():
                self._judge(now, holder, held, sum(other is holder for other, _ in found))
            else:
                self._put_off.add(held)
        holder = None
        if self.loose.are_explained(self._missing()):
            return True
        self._put_off.difference_update(self.loose.cycles)
        if self._put_off and (is_done or self._put_off.union(self.loose.cycles).issuperset(self._targets)):
            # There was no time to examine these referrers. They are searched again, if they still exist.
            self._targets = sorted(self._put_off)
            self._put_off.clear()
            self.of_holders.rewind()
            return False
        if self.loose.cycles.keys() >= set(self._targets):
            return True
        if not is_done:
            return False
        self._climbs += 1
        higher = (
            {above for pairs in self.loose.above.values() for above, _ in pairs}
            - set(self.loose.above)
            - set(self.loose.cycles)
        )
        self.loose.are_holders_seen = True
        if self._climbs >= CLIMBS_MAX or not higher:
            return True
        self._targets = sorted(higher)[:WANTED_MAX]
        for target in self._targets:
            self.loose.above.setdefault(target, [])
        self.of_holders.rewind()
        return False

    def autocast_said(self, now: Slice) -> bool:
        """Takes the main thread's answer about autocast, if only C++ holds some weights. Returns whether this stage is
        over."""
        if self._weights and self._autocast.is_on is None and self._waits < AUTOCAST_WAITS_MAX:
            self._waits += 1
            self._autocast.look(now.torch)
            now.end()
            return False
        if self._autocast.is_on:
            self.loose.patterns.update(dict.fromkeys(self._weights - set(self.loose.patterns), "autocast_cache"))
        return True

    def _judge(self, now: Slice, holder: Any, held: int, others: int) -> None:
        """Examines an object of the heap that refers to another one. `others` is how often the object is still in the
        list of found pairs."""
        if self._adopt(now, holder, held):
            return
        if type(holder) is types.FrameType or held in self.loose.cycles:
            return
        # The known references are the variables of this function and of its caller, and those of the list.
        cycle = _cycles.around(holder, held, 2 + others)
        if cycle:
            self.loose.cycles[held] = cycle
            return
        word = _reading.container(holder)
        words = (
            f"{word}, {_words.counted(_reading.length(holder), 'item')}"
            if word
            else (f"`{_reading.type_name(type(holder))}` object")
        )
        self.loose.above.setdefault(held, []).append((id(holder), words))


class _Probe:
    """An object whose references are known."""


def _held_once(pairs: list[tuple[int, Any]]) -> list[bool]:
    """For each pair, whether its object has exactly one reference besides those of the pair and of this function. This
    one reference is from C++ or from one Python object."""
    probes: list[tuple[int, Any]] = [(0, _Probe())]
    alone, *counts = [sys.getrefcount(thing) for each in (probes, pairs) for _, thing in each]
    return [count == alone + 1 for count in counts]
