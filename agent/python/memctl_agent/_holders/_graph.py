"""Walks autograd graphs: finds which of the program's tensors lead to a block that a node of the graph has saved.

Guarantees: no hook of the program runs. If torch exposes saved tensors (`SavedTensor.data`), they are read directly.
Otherwise this module recognises whether a saved tensor has pack and unpack hooks (activation checkpointing,
offloading), and reads it only if it has none. If hooks cannot be recognised, no saved tensor is read. The walk within
one slice is bounded in nodes and in time. It keeps no Python object of a node alive. It visits the oldest nodes first,
because requests are about the oldest blocks. The next slice continues where this one stopped (`_trail`).
Does not make torch recompute its view tracking (for a view whose base was changed in place). Does not read saved
tensors that were changed in place after they were saved.
"""

from __future__ import annotations

import _thread
import gc
import heapq
from collections.abc import Callable
from typing import Any, Optional

from memctl_agent._holders import _reading
from memctl_agent._holders._memory import Memory
from memctl_agent._holders._node import Reader
from memctl_agent._holders._tensors import Tensors
from memctl_agent._holders._trail import Key, Trail

NODES_MAX = 50_000
# Number of edges that are followed between two checks of the clock.
EDGES_BETWEEN_LOOKS = 64
# Number of words of the C++ object `SavedVariable` that are read.
_SAVED_WORDS = 10
# Time limit in seconds for the thread that finds which word shows hooks.
_WAIT_S = 0.02
# Maximum number of objects that are visited below the object of a function written in Python or below the result of a
# pack hook, and the maximum depth.
_BELOW_MAX = 400
_BELOW_LEVELS = 4


class Hooked:
    """Finds the word of a saved tensor that is set if the tensor has hooks. This runs once per process."""

    word: Optional[int] = None
    was_tried = False

    @classmethod
    def find(cls, torch: Any, memory: Memory) -> Optional[int]:
        """Registers hooks on saved tensors of one element, and compares their words before and after."""
        if not cls.was_tried:
            cls.was_tried = True
            done = _thread.allocate_lock()
            done.acquire()

            def look() -> None:
                try:
                    cls.word = _find_word(torch, memory)
                except Exception:
                    cls.word = None
                finally:
                    done.release()

            # This runs in a separate thread, because the program's modes, hooks and profilers belong to the program's
            # threads.
            _thread.start_new_thread(look, ())
            if not done.acquire(timeout=_WAIT_S):
                cls.word = None
        return cls.word


def _same(tensor: Any) -> Any:
    return tensor


def _find_word(torch: Any, memory: Memory) -> Optional[int]:
    ones = torch.ones(1, dtype=torch.float32, device="cpu", requires_grad=True)
    other = torch.ones(1, dtype=torch.float32, device="cpu")
    product, power = ones * other, ones.exp()
    plain, graphed = product.grad_fn._raw_saved_other, power.grad_fn._raw_saved_result
    changed = _words_set(plain, memory) & _words_set(graphed, memory)
    return next(iter(changed)) if len(changed) == 1 else None


def _words_set(saved: Any, memory: Memory) -> set[int]:
    """Registers hooks on a saved tensor. Returns the words that this sets: words that were 0 before and are not 0
    now."""
    before = saved_words(saved, memory)
    saved.register_hooks(_same, _same)
    after = saved_words(saved, memory)
    is_whole = len(before) == len(after) == _SAVED_WORDS
    return {at for at in range(_SAVED_WORDS) if is_whole and before[at] == 0 and after[at] != 0}


def saved_words(saved: Any, memory: Memory) -> tuple[int, ...]:
    """The first words of the C++ object of a saved tensor. The pointer to this object follows the head of the Python
    object."""
    pointer = memory.words(id(saved) + 16, 1)
    return memory.words(pointer[0], _SAVED_WORDS) if pointer else ()


class Graph:
    """Walks the graphs of some tensors, and finds which tensor leads to which block."""

    def __init__(
        self,
        torch: Any,
        tensors: Tensors,
        memory: Memory,
        is_left: Callable[[], bool],
        trail: Optional[Trail] = None,
    ) -> None:
        self._tensors, self._memory, self._is_left = tensors, memory, is_left
        # Where earlier slices stopped; and the nodes at its places that this slice knows.
        self._trail = Trail() if trail is None else trail
        self._at: dict[int, Any] = {}
        base = torch._C.TensorBase
        self._grad_fn = _reading.table(base)["grad_fn"].__get__
        self._grad = _reading.table(base)["grad"].__get__
        self._is_leaf = _reading.table(base)["is_leaf"].__get__
        self._version = _reading.table(base)["_version"].__get__
        self._is_view = _reading.table(base)["_is_view"]
        self._function: type = torch._C._FunctionBase
        self._saved_class: Any = getattr(torch._C._autograd, "SavedTensor", None)
        names = () if self._saved_class is None else _reading.table(self._saved_class)
        self._is_shown = "data" in names and "unpack_hook" in names
        self._word = None if self._is_shown else Hooked.find(torch, memory)
        self._readers: dict[int, Reader] = {}
        # The nodes that were seen, each with the index of the tensor from which it was first reached.
        self._owner: dict[int, int] = {}
        self._nodes: dict[int, Any] = {}
        self._leaves: dict[int, Any] = {}
        self._tops: dict[int, int] = {}
        # For each found block: the index of the tensor that leads to it, and the words for the step.
        self.found: dict[int, tuple[int, str]] = {}
        self.hooked = 0
        self.unread = 0
        # Indices of tensors whose graph has a leaf with a gradient that has a graph itself.
        self.graphed: set[int] = set()
        # The number of tensors whose graphs were walked, and whether the walk of the last graph was stopped early.
        self.walked = 0
        # The number of edges that were followed to where an earlier slice stopped.
        self.followed = 0
        self.is_cut = False

    @property
    def nodes(self) -> int:
        """The number of visited nodes."""
        return len(self._owner)

    @property
    def can_tell(self) -> bool:
        """Whether saved tensors may be read."""
        return self._is_shown or self._word is not None

    def walk(self, starts: list[Any], missing: set[int]) -> None:
        """Looks for the blocks in `missing`, and removes the blocks that it finds from it. Begins with the first
        tensor."""
        for number, start in enumerate(starts):
            if not missing or not self._is_left() or len(self._owner) > NODES_MAX:
                return
            self.walked = number + 1
            if start is None:
                continue
            self._gradient(start, number, missing)
            top = self._node_of(start)
            if top is None:
                continue
            known = self._owner.get(id(top))
            if known is not None:
                self._tops[number] = known
                continue
            self._from(top, number, missing)

    def leads(self, number: int) -> list[int]:
        """The tensors whose graphs contain this tensor's graph, and then this tensor. The first one's graph contains
        all others."""
        path = [number]
        while path[-1] in self._tops and self._tops[path[-1]] not in path:
            path.append(self._tops[path[-1]])
        return path[::-1]

    def close(self) -> None:
        """Releases all nodes."""
        self._nodes.clear()
        self._at.clear()
        self._leaves.clear()
        self._readers.clear()

    def has_graphed_gradient(self, tensor: Any) -> bool:
        """Whether a tensor is a leaf whose gradient has a graph itself."""
        try:
            gradient = self._grad(tensor) if self._is_leaf(tensor) else None
            return gradient is not None and self._grad_fn(gradient) is not None
        except RuntimeError:
            return False

    def _gradient(self, tensor: Any, number: int, missing: set[int]) -> None:
        try:
            gradient = self._grad(tensor) if self._is_leaf(tensor) else None
        except RuntimeError:
            return
        if gradient is not None and id(type(gradient)) in self._tensors.class_ids:
            block = self._tensors.block_of(gradient)
            if block in missing:
                missing.discard(block)
                self.found[block] = (number, "attribute `grad`")
            top = self._node_of(gradient)
            if top is not None and id(top) not in self._owner:
                self.graphed.add(number)
                self._from(top, number, missing)

    def _node_of(self, tensor: Any) -> Any:
        try:
            # For a view whose base was changed in place, reading `grad_fn` would create a new node. The program may
            # never have requested this node.
            if self._is_view(tensor) and self._version(tensor) != 0:
                self.unread += 1
                return None
            return self._grad_fn(tensor)
        except RuntimeError:
            # This is an inference tensor. It has no version counter and no graph.
            return None

    def _from(self, top: Any, number: int, missing: set[int]) -> None:
        trail, is_lost = self._trail, False
        self._at = {trail.begin(self._key(top)): top}
        while trail.waiting and missing and self._is_left() and len(self._owner) <= NODES_MAX:
            made, place = trail.waiting[0]
            node = self._reach(place)
            if node is None:
                is_lost = not trail.waiting
                break
            heapq.heappop(trail.waiting)
            if id(node) in self._owner:
                continue
            self._owner[id(node)] = number
            self._nodes[id(node)] = node
            if (made, id(type(node))) in trail.done:
                continue
            self._saved(node, number, missing)
            for edge, other in self._next(node, number, missing):
                trail.push(self._key(other), place, edge)
        self.is_cut = bool(missing) and (is_lost or bool(trail.waiting) or not trail.end())

    def _reach(self, place: int) -> Any:
        """The node at a place; `None` if there is no time to follow the edges that lead to it. If they lead elsewhere
        now, the walk will begin again."""
        way = self._trail.way(place, self._at)
        node = self._at[way[0]] if way else None
        for count, below in enumerate(way[1:], 1):
            if count % EDGES_BETWEEN_LOOKS == 0 and not self._is_left():
                return None
            edges, edge = self._reader(node).following(node), self._trail.edge[below]
            node = edges[edge][0] if edge < len(edges) else None
            if node is None:
                break
            self._at[below] = node
            self.followed += 1
        if node is None:
            self._trail.clear()
        return node

    def _key(self, node: Any) -> Key:
        """Identifies a node between slices. The first number is larger for nodes that were created later."""
        number = self._reader(node).made
        return (number(node) if number is not None else 0), id(type(node))

    def _next(self, node: Any, number: int, missing: set[int]) -> list[tuple[int, Any]]:
        """The nodes below a node, each with the index of its edge. Nodes that accumulate gradients are not among them,
        because all graphs of a model share these nodes."""
        reader = self._reader(node).following
        edges: Any = () if reader is None else reader(node)
        following = []
        for edge, (other, _) in enumerate(edges):
            if other is None:
                continue
            if not self._reader(other).is_gathering:
                following.append((edge, other))
            elif id(other) not in self._leaves:
                self._leaves[id(other)] = other
                self._leaf(other, number, missing)
        return following

    def _leaf(self, node: Any, number: int, missing: set[int]) -> None:
        """Visits a leaf of the graph. The node that accumulates the leaf's gradient refers to the leaf."""
        leaf = _reading.table(type(node))["variable"].__get__(node)
        if id(type(leaf)) not in self._tensors.class_ids:
            return
        block = self._tensors.block_of(leaf)
        if block in missing:
            missing.discard(block)
            self.found[block] = (number, "a leaf of the graph")
        gradient = self._grad(leaf)
        if gradient is not None and id(type(gradient)) in self._tensors.class_ids:
            block = self._tensors.block_of(gradient)
            if block in missing:
                missing.discard(block)
                self.found[block] = (number, "attribute `grad` of a leaf of the graph")
            if self._node_of(gradient) is not None:
                self.graphed.add(number)

    def _saved(self, node: Any, number: int, missing: set[int]) -> None:
        reader = self._reader(node)
        name = reader.name
        if reader.is_function:
            self._below(node, number, f"saved in the context of `{name}`", missing)
        for raw, unpacked in reader.pairs if self.can_tell else ():
            try:
                saved = raw(node)
            except RuntimeError:
                # The saved tensors were freed already.
                continue
            each = saved if type(saved) is tuple else (saved,)
            if self._is_shown:
                for one in each:
                    self._shown(one, number, name, missing)
            elif self._may_read(each):
                self._take(self._blocks_of(unpacked, node), number, f"saved by `{name}`", missing)

    def _shown(self, saved: Any, number: int, name: str, missing: set[int]) -> None:
        """Visits a saved tensor that torch exposes: the tensor itself, or the result of a pack hook."""
        if type(saved) is not self._saved_class:
            return
        try:
            value, is_packed = saved.data, saved.unpack_hook is not None
        except RuntimeError:
            return
        how = f"saved by `{name}`" + (" through a pack hook" if is_packed else "")
        if id(type(value)) in self._tensors.class_ids:
            block = self._tensors.block_of(value)
            self._take([] if block is None else [block], number, how, missing)
        elif is_packed:
            self._below(value, number, how, missing)

    def _below(self, top: Any, number: int, how: str, missing: set[int]) -> None:
        """Finds tensors a few levels below an object: a node of a function written in Python, or the result of a pack
        hook."""
        level, seen = [top], 0
        for _ in range(_BELOW_LEVELS):
            following: list[Any] = []
            for thing in level:
                for below in gc.get_referents(thing)[:_BELOW_MAX]:
                    seen += 1
                    if id(type(below)) in self._tensors.class_ids:
                        block = self._tensors.block_of(below)
                        self._take([] if block is None else [block], number, how, missing)
                    elif _reading.container(below) is not None and gc.is_tracked(below):
                        following.append(below)
            if not following or seen > _BELOW_MAX:
                return
            level = following

    def _take(self, blocks: list[int], number: int, how: str, missing: set[int]) -> None:
        for block in blocks:
            if block in missing:
                missing.discard(block)
                self.found[block] = (number, how)

    def _may_read(self, each: tuple[Any, ...]) -> bool:
        """Whether none of the saved tensors of one attribute has hooks."""
        for one in each:
            words = saved_words(one, self._memory)
            if len(words) != _SAVED_WORDS or words[self._word or 0] != 0:
                self.hooked += 1
                return False
        return True

    def _blocks_of(self, unpacked: Any, node: Any) -> list[int]:
        try:
            values = unpacked(node)
        except RuntimeError:
            # The saved tensor was freed, or it was changed in place after it was saved.
            return []
        each = values if type(values) in (tuple, list) else (values,)
        wanted = [self._tensors.block_of(one) for one in each if id(type(one)) in self._tensors.class_ids]
        return [block for block in wanted if block is not None]

    def _reader(self, node: Any) -> Reader:
        cls = type(node)
        known = Reader.static.get(id(cls)) or self._readers.get(id(cls))
        if known is None:
            known = Reader(cls, self._function)
            if _reading.is_heap_type(cls):
                self._readers[id(cls)] = known
            else:
                # The type was defined in C++ and is never freed.
                Reader.static[id(cls)] = known
        return known
