"""The order of a search: what lies near, all tensors, climbs from those that remain, cycles, the autograd graph.

Guarantees: a block for which several tensors are found counts once, for the one that a chain leads to first.
Refuses: what the clock no longer allows; `notes` says so.
"""

from __future__ import annotations

import gc
from typing import Any, Optional

from memctl_agent._holders import _cycles, _reading
from memctl_agent._holders._answer import Found
from memctl_agent._holders._clock import Clock
from memctl_agent._holders._frames import Frames
from memctl_agent._holders._graph import Graph
from memctl_agent._holders._memory import Memory
from memctl_agent._holders._search import Search
from memctl_agent._holders._tensors import Tensors

# Tensors whose holders are looked for together: whoever holds some of a site holds most.
TOGETHER = 8
# The part of the budget for what lies near the program's own modules.
NEAR_SHARE = 0.3
# And until then for what this thread's functions have in their variables.
HERE_SHARE = 0.5
# Levels above a tensor from which more tensors are looked for.
LEVELS = 4


class Finder:
    """One search."""

    def __init__(
        self, torch: Any, blocks: list[tuple[int, int]], clock: Clock, memory: Memory, is_collecting: bool
    ) -> None:
        self.torch, self._clock, self._memory, self._is_collecting = torch, clock, memory, is_collecting
        self._count = len(blocks)
        self.tensors = Tensors(torch, blocks)
        self.frames = Frames(memory)
        self.search = Search(self.tensors, self.frames, clock)
        self.search.own(self.__dict__, self.tensors.classes, self.tensors.refused)
        self.graph: Optional[Graph] = None
        # Tensors that only an unreachable cycle holds, with the words for it.
        self.cycles: dict[int, str] = {}
        # What is partly known: something holds them, and nothing was found to hold that.
        self._loose: set[int] = set()
        self._tried: set[int] = set()
        self._is_heap_seen = self._has_all = False
        self._frozen = gc.get_freeze_count()

    def find(self) -> list[Found]:
        """What holds each block of which it is known."""
        if not self.tensors.can_tell:
            return []
        self.frames.look()
        self.search.look_at_modules()
        self.search.look_near(NEAR_SHARE)
        self.search.look_here(HERE_SHARE)
        found = self._with_graphs(self._found(), self.search.near_tensors, only_rooted=True)
        if len(found) < self._count and self._clock.fits_a_pass():
            self._is_heap_seen = True
            self.search.look_at_heap()
            self._climb_all()
            known = self._found()
            blocks = {one.block for one in known}
            found = known + [one for one in found if one.block not in blocks]
            found = self._with_graphs(found, self.search.all_tensors, only_rooted=False)
        self._has_all = len(found) == self._count
        return sorted(found, key=lambda one: one.block)

    def _with_graphs(self, found: list[Found], starts: list[Any], only_rooted: bool) -> list[Found]:
        """Adds the blocks that the graphs of some tensors lead to."""
        missing = set(range(self._count)) - {one.block for one in found}
        if not missing or not starts or not self._clock.is_left():
            return found
        return found + self._in_graph(missing, starts, only_rooted)

    def _climb_all(self) -> None:
        """Climbs for a few tensors at a time; whatever holds them usually holds others."""
        bare = 0
        while bare < TOGETHER and self._clock.is_left():
            goals = self._goals()
            if not goals:
                return
            self.search.own(goals)
            self._tried |= set(map(id, goals))
            self.search.climb(goals)
            for goal in goals:
                if self.search.is_rooted(id(goal)):
                    self._spread_from(id(goal))
                elif len(self.search.ancestors(id(goal))) == 1:
                    bare += 1
                else:
                    self._judge_loose(goal)
            if self._clock.ran_out:
                return

    def _goals(self) -> list[Any]:
        """A few tensors of blocks to which no chain leads yet, from the first to the last."""
        rooted = {block for tensor, block in self.search.wanted.items() if self._is_known(tensor)}
        waiting: dict[int, int] = {}
        for tensor, block in self.search.wanted.items():
            if block not in rooted and tensor not in self._tried:
                waiting.setdefault(block, tensor)
        numbers = sorted(waiting)
        step = max(1, len(numbers) // TOGETHER)
        return [self.search.objects[waiting[number]] for number in numbers[::step][:TOGETHER]]

    def _is_known(self, tensor: int) -> bool:
        return self.search.is_rooted(tensor) or tensor in self.cycles or tensor in self._loose

    def _spread_from(self, tensor: int) -> None:
        """Looks for more tensors below what holds this one."""
        path = self.search.path(tensor)
        self.search.own(path)
        for level in range(1, min(LEVELS, len(path) - 1) + 1):
            top = path[-1 - level]
            root = self.search.root(top)
            if root is not None and root[0] == "module":
                return
            if _reading.container(top) is not None and self._clock.is_left():
                self.search.spread(top, level)

    def _judge_loose(self, goal: Any) -> None:
        """A tensor that something holds, to which no chain leads: a cycle, or a container that is held from C."""
        search = self.search
        if _cycles.is_garbage(search, id(goal)):
            names = {_reading.type_name(type(search.objects[at])) for at in search.ancestors(id(goal))[1:]}
            # An object's attributes are in a dict or not, as CPython likes.
            cycle = ", ".join(f"`{name}`" for name in sorted(names - {"dict"} or names)[:4])
            why = "has not run since" if self._is_collecting else "is disabled"
            self.cycles[id(goal)] = f"an unreachable cycle of {cycle}: the garbage collector {why}"
        elif self._clock.ran_out and any(
            _reading.container(search.objects[at]) for at in search.ancestors(id(goal))[1:2]
        ):
            self._loose.add(id(goal))

    def _found(self) -> list[Found]:
        """Blocks on which a tensor lies to which a chain leads; those outside of running functions first."""
        best: dict[int, tuple[bool, Any]] = {}
        for tensor, block in self.search.wanted.items():
            if self._is_known(tensor):
                path = self.search.path(tensor)
                root = self.search.root(path[0]) if path else None
                is_running = root is not None and root[0] == "local"
                known = best.get(block)
                if known is None or (known[0] and not is_running):
                    best[block] = (is_running, self.search.objects[tensor])
        return [Found(block, tensor) for block, (_, tensor) in sorted(best.items(), key=lambda entry: entry[0])]

    def _in_graph(self, missing: set[int], starts: list[Any], only_rooted: bool) -> list[Found]:
        """Blocks that a node of the autograd graph has saved, by the tensor whose graph it is."""
        search = self.search
        if self.graph is not None:
            self.graph.close()
        self.graph = graph = Graph(self.torch, self.tensors, self._memory, self._clock)
        search.own(*graph.own)
        graph.walk(starts, missing)
        ways = dict(graph.found)
        for tensor, block in search.wanted.items():
            if block in missing and block not in ways:
                for above in search.ancestors(tensor):
                    if above in graph.contexts:
                        ways[block] = graph.contexts[above]
        leads = {number: graph.leads(number) for number, _ in ways.values()}
        search.sought = {search.keep(starts[at]) for numbers in leads.values() for at in numbers}
        found = []
        for block, (number, how) in sorted(ways.items()):
            tensor = self._rooted_start([starts[at] for at in leads[number]], only_rooted)
            if tensor is not None:
                found.append(Found(block, tensor, how))
        return found

    def _rooted_start(self, tensors: list[Any], only_rooted: bool) -> Any:
        """The first of some tensors to which a chain leads; it is looked for if there is time."""
        self.search.own(tensors)
        for tensor in tensors:
            is_new = not self._is_known(self.search.keep(tensor)) and id(tensor) not in self._tried
            if is_new and not only_rooted:
                self._tried.add(id(tensor))
                self._climb_one(tensor)
            if self.search.is_rooted(id(tensor)):
                return tensor
        return None

    def _climb_one(self, tensor: Any) -> None:
        goals = [tensor]
        self.search.own(goals)
        # Whatever lies below its holder, too, is found without a climb of its own.
        self.search.climb(goals)
        if self.search.is_rooted(id(tensor)):
            self._spread_from(id(tensor))

    @property
    def is_complete(self) -> bool:
        """Whether everything that can be looked at was."""
        return self.tensors.can_tell and (self._has_all or self._is_complete_search)

    @property
    def _is_complete_search(self) -> bool:
        graph = self.graph
        return (
            self._is_heap_seen
            and not self._clock.ran_out
            and self.frames.can_tell
            and not self._frozen
            and not self.search.refused
            and (graph is None or (graph.can_tell and not graph.hooked and not graph.unread))
        )

    def notes(self, missing: int) -> list[str]:
        """What was not looked at, in sentences."""
        notes = []
        if not self.tensors.can_tell:
            notes.append("Tensors were not looked at: this torch does not tell where they lie.")
        elif self._has_all:
            return notes
        if not self._is_heap_seen or not self.search.has_all_tensors:
            notes.append("The heap was not looked at as a whole, which would take longer than the budget.")
        elif self._clock.ran_out:
            notes.append("The search ended with its budget; what was found until then is here.")
        if not self.frames.can_tell:
            notes.append("Local variables of running functions were not looked at.")
        graph = self.graph
        if graph is not None and not graph.can_tell:
            notes.append(
                "Tensors saved in autograd graphs were not looked at: hooks on them cannot be recognised here."
            )
        if graph is not None and graph.hooked:
            notes.append("Saved tensors with pack and unpack hooks were not looked at: here that would run the hooks.")
        if graph is not None and graph.unread:
            notes.append("Graphs of views whose base was changed in place were not looked at.")
        if self.search.refused:
            notes.append(
                f"{self.search.refused:,} tensors of classes with their own `__torch_dispatch__` were not asked "
                "where they lie."
            )
        if self._frozen:
            notes.append(f"{self._frozen:,} objects that `gc.freeze` has set aside were not looked at.")
        if missing:
            notes.append(
                "What C and C++ extensions hold, other threads' C stacks included, is not seen; "
                "blocks without a holder here may be held there."
            )
        return notes

    def close(self) -> None:
        """Lets every object of the program go."""
        if self.graph is not None:
            self.graph.close()
        self.search.close()
