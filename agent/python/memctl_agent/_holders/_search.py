"""One search, in slices: first the places where leaks usually are, then the whole heap, and then the answer.

The stages, in their order:
1. Objects below the globals of the started module.
2. Objects below the variables of running functions, in all threads.
3. Autograd graphs of the tensors that were found so far.
4. Sorting of all modules by nearness. A module is next to the started program (in its folder), another one of the
   program's own modules, or installed.
5. Objects below the globals of the modules next to the started program, and then of its other modules.
6. Objects below the variables of suspended generators and coroutines. (To find these, all objects of the collector are
   visited, which may take more time than all earlier stages.)
7. Graphs of the tensors that were found since stage 3.
8. Deferred references. An object with thousands of references is wide. The earlier stages visit only its first and last
   references.
9. For the remaining blocks: all tensors of the heap, and the referrers of these tensors.
10. Objects below the globals of installed modules.
11. The main thread's answer to whether autocast is on.
12. The answer: the blocks are grouped by holder, and each group is described.

Guarantees: between two slices only numbers and texts are kept. A slice ends when its time is over. Only the visit of
one object can make it longer. Results are verified before they are reported. The collector is off within a slice and
restored afterwards.
The search ends when the budget is spent. The answer then states what was not searched.

(Over 400 lines: the stages share what was found so far, and each stage is read beside the previous one.)
"""

from __future__ import annotations

import functools
import gc
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Optional

from memctl_agent._holders import _answer, _facts, _reading, _roots, _words
from memctl_agent._holders._answer import Answer
from memctl_agent._holders._frames import Frames
from memctl_agent._holders._graph import Graph
from memctl_agent._holders._grouping import SAVED, Group, Grouping, Way
from memctl_agent._holders._heap import InHeap
from memctl_agent._holders._memory import Memory
from memctl_agent._holders._roots import BESIDE, INSTALLED, OWN, Root, Roots
from memctl_agent._holders._slice import Slice
from memctl_agent._holders._trail import Trail

# Duration of a slice.
SLICE_MS = 2.0
# Maximum number of tensors whose graphs are walked in one slice.
STARTS_AT_ONCE = 64
# Graphs may use up to this share of the budget while each slice finds something.
GRAPHS_SHARE_MAX = 0.85
# Additional time of a slice for a graph that is too long for one slice.
LONG_GRAPH_MS = 5.0
# If a slice follows this many edges for each node that it visits, the way back to the nodes takes a large part of it.
WAY_SHARE = 2
# Number of a module's variables with tensors that are described one by one.
VARIABLES_TOLD_MAX = 8
# The walk of a graph ends after this many slices without progress.
STUCK_MAX = 4
# Maximum number of groups that are described, before equal groups are merged.
TOLD_MAX = 24
# Maximum number of restarts of the walk.
BEGINNINGS_MAX = 2
# About this many chains are checked to decide whether the walk is restarted.
TRIED = 32
# A tensor may have been replaced by another one. The replacement is searched among at most this many references of the
# holder.
REPLACED_AMONG = 4_096
# Number of modules that are sorted between two checks of the clock.
MODULES_BETWEEN_LOOKS = 32
# Number of modules that become roots at once.
MODULES_AT_ONCE = 128

# A stage may continue up to this share of the budget.
_SHARES = {
    "_main": 0.3,
    "_variables": 0.5,
    "_graphs": 0.55,
    "_modules": 0.58,
    "_beside": 0.62,
    "_own_modules": 0.65,
    "_suspended": 0.7,
    "_rest": 0.75,
    "_heap_tensors": 0.8,
    "_heap_holders": 0.95,
    "_heap_rest": 0.95,
    "_installed": 0.95,
}
# Stages that find chains, and graphs to which chains lead.
CHAIN_STAGES = {"_main", "_variables", "_graphs", "_modules", "_beside", "_own_modules", "_suspended", "_rest"}
# On a busy machine a thread waits more than it works. So a search has two limits: its own work may take its budget, and
# its slices may take `WAITS` times the budget, including waits. The second limit is at most `WAITS_MS_MAX`, or the
# budget if the budget is longer.
WAITS = 2
WAITS_MS_MAX = 100.0


class Search:
    """The search of one request; see the module's documentation."""

    def __init__(
        self, native: Any, blocks: Sequence[tuple[int, int]], asked: int, budget_ms: float, first: Sequence[str] = ()
    ) -> None:
        self._native, self._blocks, self._asked = native, list(blocks), asked
        self._budget_ns = budget_ms * 1e6
        self._wall_ns = max(budget_ms, min(WAITS * budget_ms, WAITS_MS_MAX)) * 1e6
        self._worked_ns = 0
        self._took_ns = self._longest_ns = self._slices = 0
        self._is_collecting = True
        self.answer: Optional[dict[str, Any]] = None
        self._installed_folders = _roots.installed_folders()
        self._keys: Optional[list[str]] = None
        self._places: Optional[_roots.Places] = None
        self._modules_at = 0
        # Modules where the search begins, by their names.
        self._first = [*first, "__main__"]
        self._near: dict[int, list[str]] = {BESIDE: [*_roots.main_names(), *first], OWN: [], INSTALLED: []}
        self._namespace_ids: set[int] = set()
        self._walk: Any = native.Walk(self._blocks)
        self._frames = Frames(native)
        self._roots = Roots(self._frames)
        # Indices of roots by the stage that made them, and names of modules that will become roots.
        self._staged: dict[str, list[int]] = {}
        self._waiting: dict[str, list[str]] = {}
        self._installed_at = 0
        self._threads: Optional[list[int]] = None
        # The walk that finds generators, the generators that are not visited yet, and whether the walk is complete.
        self._generators: Any = None
        self._seen_generators: list[Any] = []
        self._are_generators_seen = False
        self._starts: Optional[list[int]] = None
        self._starts_seen = 0
        self._in_graph: dict[int, tuple[int, str]] = {}
        self._hooked = self._unread = 0
        self._is_graph_cut = self._are_starts_lost = False
        self._do_graphs_lead_on = self._is_resumed = False
        self._stuck = 0
        # How a tensor is held whose graph holds blocks, as it was when the blocks were found.
        self._noted: dict[int, dict[str, Any]] = {}
        # Where the walk of graphs stopped, and the additional time of the next slice for one graph.
        self._trail = Trail()
        self._graph_ms = 0.0
        self._in_heap = InHeap(native, self._blocks, self._missing, self._adopt)
        self._grouping: Optional[Grouping] = None
        self._groups: Optional[list[Group]] = None
        self._entries: list[dict[str, Any]] = []
        self._known = 0
        self._cut: set[str] = set()
        # How often the walk was restarted, and the time that was used before the last restart.
        self._begun_again = 0
        self._spared_ns = (0, 0)
        self._stages = self._all_stages()

    def _all_stages(self) -> list[Callable[[Slice], bool]]:
        return [
            self._main,
            self._variables,
            self._graphs,
            self._modules,
            self._beside,
            self._own_modules,
            self._suspended,
            self._graphs,
            self._rest,
            self._heap_tensors,
            self._heap_holders,
            self._heap_rest,
            self._installed,
            self._autocast_said,
            self._gather,
            self._tell,
        ]

    def _begin_again(self) -> None:
        """Discards the walk and begins a new one. This happens if many chains no longer exist: the variables where they
        began have other values now, and the walk does not enter visited objects again."""
        self._forget()
        self._begun_again += 1
        self._spared_ns = self._worked_ns, self._took_ns

    def _forget(self) -> None:
        self._walk = self._native.Walk(self._blocks)
        self._grouping = self._threads = self._starts = self._generators = None
        self._seen_generators, self._are_generators_seen = [], False
        self._roots = Roots(self._frames)
        self._staged, self._waiting, self._in_graph, self._noted = {}, {}, {}, {}
        self._trail = Trail()
        self._starts_seen = self._installed_at = 0
        self._are_starts_lost = False
        self._stages = self._all_stages()

    def renew(self, blocks: Sequence[tuple[int, int]]) -> bool:
        """Restarts with other blocks and the rest of the budget. Returns whether enough of the budget is left."""
        if self.answer is not None or 2 * self._took_ns > self._wall_ns:
            return False
        self._budget_ns -= self._worked_ns - self._spared_ns[0]
        self._wall_ns -= self._took_ns - self._spared_ns[1]
        self._spared_ns = self._worked_ns, self._took_ns
        self._blocks, self._asked = list(blocks), len(blocks)
        self._forget()
        self._in_heap = InHeap(self._native, self._blocks, self._missing, self._adopt)
        self._groups, self._known = None, 0
        self._entries, self._cut = [], set()
        return True

    @property
    def is_over(self) -> bool:
        """Whether there is an answer."""
        return self.answer is not None

    def slice(self, slice_ms: float = SLICE_MS) -> float:
        """Continues for one slice. Returns its duration in milliseconds."""
        began, worked = time.perf_counter_ns(), time.thread_time_ns()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._is_collecting = was_enabled
            self._go(began + int(slice_ms * 1e6))
        except Exception as fault:
            # Only the exception's type is reported, because its text may come from the program.
            self.answer = _answer.empty(
                self._asked, [f"The search ended with a fault of its own ({type(fault).__name__})."]
            )
        finally:
            if was_enabled:
                gc.enable()
            took = time.perf_counter_ns() - began
            self._slices += 1
            self._worked_ns += time.thread_time_ns() - worked
            self._took_ns += took
            self._longest_ns = max(self._longest_ns, took)
            if self.answer is not None:
                # These references form cycles. If the collector is off, cycles would not be freed.
                self._stages.clear()
                self._in_heap.close()
                self.answer["took_ms"] = round(self._took_ns / 1e6, 3)
                self.answer["longest_ms"] = round(self._longest_ns / 1e6, 3)
                self.answer["slices"] = self._slices
        return took / 1e6

    def _go(self, end_ns: int) -> None:
        torch = sys.modules.get("torch")
        if getattr(torch, "Tensor", None) is None:
            self.answer = _answer.empty(self._asked, ["Nothing was searched, because torch is not imported."])
            return
        if getattr(torch._C, "_data_address", None) is None:  # type: ignore[union-attr]
            self.answer = _answer.empty(
                self._asked, ["Tensors were not searched, because this torch does not report their addresses."]
            )
            return
        # The program's subclasses and modes do not see the accesses to tensors in this block.
        with torch._C.DisableTorchFunction():  # type: ignore[union-attr]
            now = Slice(torch, self._blocks, (*self._near[BESIDE], *self._near[OWN]), end_ns)
            began, worked = time.perf_counter_ns(), time.thread_time_ns()
            while self.answer is None and now.is_left():
                stage = self._stages[0]
                spent = (self._worked_ns - self._spared_ns[0] + time.thread_time_ns() - worked) / max(
                    1.0, self._budget_ns
                )
                passed = (self._took_ns - self._spared_ns[1] + time.perf_counter_ns() - began) / max(1.0, self._wall_ns)
                share = _SHARES.get(stage.__name__)
                if share is not None and stage == self._graphs and self._do_graphs_lead_on:
                    share = GRAPHS_SHARE_MAX
                # (Stages without a share are the last ones. They always run.)
                if share is not None and max(spent, passed) > share:
                    if stage != self._graphs or self._has_starts():
                        self._cut.add(stage.__name__)
                    self._end_of(stage)
                elif stage(now):
                    self._end_of(stage)

    def _end_of(self, stage: Callable[[Slice], bool]) -> None:
        if stage.__name__ in (
            "_main",
            "_beside",
            "_variables",
            "_suspended",
            "_own_modules",
            "_installed",
        ):
            # The references that this stage has not visited are visited by the stage `_rest`.
            self._walk.shelve()
        self._stages.pop(0)

    # -- from the roots down -------------------------------------------------------------------------------------

    def _missing(self) -> set[int]:
        """Blocks without a known holder."""
        known = {block for block, _ in self._walk.found()}
        return set(range(len(self._blocks))) - known - set(self._in_graph)

    def _modules(self, now: Slice) -> bool:
        """Sorts all modules by nearness."""
        if not self._missing():
            return True
        if self._keys is None:
            keys = [key for key in list(sys.modules) if type(key) is str and not key.startswith("memctl_agent")]
            self._keys = keys
            # The started module may have further names, from `multiprocessing` or a launcher.
            self._namespace_ids.add(id(_reading.module_dict(dict.get(sys.modules, "__main__"))))
        if self._places is None:
            self._places = _roots.Places(self._installed_folders)
        while self._modules_at < len(self._keys):
            if not now.is_left():
                return False
            keys = self._keys[self._modules_at : self._modules_at + MODULES_BETWEEN_LOOKS]
            self._modules_at += len(keys)
            for key in keys:
                if self._places.is_of_installed(key):
                    self._near[INSTALLED].append(key)
                    continue
                namespace = _reading.module_dict(dict.get(sys.modules, key))
                if namespace is not None and id(namespace) not in self._namespace_ids:
                    self._namespace_ids.add(id(namespace))
                    self._near[self._places.nearness(namespace)].append(key)
        now.set_near((*self._near[BESIDE], *self._near[OWN]))
        return True

    def _put_modules(self, now: Slice, stage: str, keys: list[str]) -> bool:
        """Makes modules roots of a stage. Returns whether no modules are left."""
        while keys and now.is_left():
            key = keys.pop(0)
            namespace = _reading.module_dict(dict.get(sys.modules, key))
            number = self._walk.root(now.rules, namespace) if namespace is not None else None
            if number is not None:
                self._put(stage, number, Root("module", _reading.plain(key) or "?", slot=key))
        return not keys

    def _put(self, stage: str, number: int, root: Root) -> None:
        self._roots.put(number, root)
        self._staged.setdefault(stage, []).append(number)

    def _go_below(self, now: Slice, *stages: str, is_late: bool = False) -> bool:
        """Continues below the roots of some stages. Returns whether nothing is left there."""
        roots = self._roots.objects([number for stage in stages for number in self._staged.get(stage, ())])
        is_done = self._walk.go(now.rules, roots, now.left_us(), is_late)
        return is_done or self._walk.has_all()

    def _main(self, now: Slice) -> bool:
        """Objects below the globals of the started module."""
        if "main" not in self._staged:
            self._put_modules(now, "main", list(self._first))
        return self._go_below(now, "main")

    def _variables(self, now: Slice) -> bool:
        """Objects below the variables of running functions, in all threads."""
        if not self._missing():
            return True
        if self._threads is None:
            self._threads = _roots.threads()
        main = _roots.main_thread()
        # The frames are read once for all threads, because this takes a while if there are hundreds of threads.
        running: dict[int, Any] = sys._current_frames() if self._threads else {}
        of_modules: set[int] = set()
        while self._threads and now.is_left():
            ident = self._threads.pop(0)
            frame = running.pop(ident, None)
            known = self._namespace_ids, of_modules
            for root, value in _roots.variables(self._frames, ident, frame, ident == main, *known):
                number = self._walk.root(now.rules, value)
                if number is not None:
                    self._put("variables", number, root)
        running.clear()
        frame = None
        if not now.is_left():
            return False
        return self._go_below(now, "variables") and not self._threads

    def _suspended(self, now: Slice) -> bool:
        """Objects below the variables of suspended generators and coroutines. A generator that a loop iterates over
        often has no other name."""
        if not self._missing():
            return True
        if self._generators is None:
            self._generators = self._native.Heap([])
        if not self._are_generators_seen and not self._seen_generators:
            self._are_generators_seen, found = self._generators.generators(now.left_us() // 2)
            # Generators that this slice does not reach are visited in the next slice. Until then only weak references
            # to them are kept.
            self._seen_generators = [weakref.ref(generator) for generator in found]
            found.clear()
        while self._seen_generators and now.is_left():
            for root, value in _roots.suspended(self._frames, self._seen_generators.pop()()):
                number = self._walk.root(now.rules, value)
                if number is not None:
                    self._put("suspended", number, root)
        value = None
        is_seen = self._are_generators_seen and not self._seen_generators
        return self._go_below(now, "suspended") and is_seen

    def _beside(self, now: Slice) -> bool:
        """Objects below the globals of modules next to the started program."""
        return not self._missing() or self._of_modules(now, "beside", self._near[BESIDE])

    def _own_modules(self, now: Slice) -> bool:
        """Objects below the globals of the program's other modules."""
        return not self._missing() or self._of_modules(now, "own", self._near[OWN])

    def _of_modules(self, now: Slice, stage: str, keys: list[str]) -> bool:
        # (The list with the names is copied, because the names also determine which classes are the program's own.)
        if stage not in self._waiting:
            self._waiting[stage] = list(keys)
        return self._put_modules(now, stage, self._waiting[stage]) and self._go_below(now, stage)

    def _rest(self, now: Slice) -> bool:
        """Visits the deferred references."""
        return not self._missing() or self._go_below(
            now, "main", "variables", "suspended", "beside", "own", is_late=True
        )

    def _installed(self, now: Slice) -> bool:
        """Objects below the globals of installed modules, some modules at a time."""
        is_nothing_above = self._in_heap.loose.are_holders_seen and not self._in_heap.loose.above
        if is_nothing_above or self._in_heap.loose.are_explained(self._missing()):
            return True
        while now.is_left():
            stage = f"installed {self._installed_at}"
            if stage not in self._waiting:
                at = self._installed_at * MODULES_AT_ONCE
                self._waiting[stage] = self._near[INSTALLED][at : at + MODULES_AT_ONCE]
                if not self._waiting[stage]:
                    return True
            if not self._put_modules(now, stage, self._waiting[stage]) or not self._go_below(now, stage):
                return False
            self._installed_at += 1
        return not self._missing()

    # -- graphs --------------------------------------------------------------------------------------------------

    def _has_starts(self) -> bool:
        """Whether there are tensors whose graphs were not walked, and blocks that these graphs may lead to."""
        return bool((self._starts or self._walk.starts()[self._starts_seen :]) and self._missing())

    def _graphs(self, now: Slice) -> bool:
        """Blocks that are reached through the graphs of tensors with a chain."""
        if self._starts is None:
            starts: list[int] = self._walk.starts()[self._starts_seen :]
            self._starts, self._starts_seen = starts, self._starts_seen + len(starts)
        missing = self._missing()
        if not missing or not self._starts:
            self._starts = None
            return True
        began, worked = time.perf_counter_ns(), time.thread_time_ns()
        numbers = self._starts[-STARTS_AT_ONCE:]
        numbers.reverse()
        paths = self._paths(now, numbers)
        self._put_replaced(now, numbers, paths)
        tensors = [None if path is None else path[-1] for path in paths]
        # The tensor whose graph was being walked no longer exists.
        if self._is_resumed and tensors[0] is None:
            self._is_graph_cut = True
            self._trail.clear()
        memory, more_ms = Memory(), self._graph_ms
        self._graph_ms = 0.0
        is_left = functools.partial(now.is_left_for_graph, more_ms)
        graph = Graph(now.torch, now.tensors, memory, is_left, self._trail)
        try:
            graph.walk(tensors, missing)
            self._do_graphs_lead_on = bool(graph.found)
            for block, (start, how) in graph.found.items():
                first = graph.leads(start)[0]
                self._in_graph[block] = (numbers[first], how)
                if numbers[first] not in self._noted:
                    self._note(now, numbers[first], paths[first])
            self._hooked += graph.hooked
            self._unread += graph.unread
            # A graph that is too long for one slice continues in the next slice, while there is progress.
            goes_on, was_none = False, graph.walked == 0
            if not was_none and not graph.is_cut:
                self._stuck = 0
            if graph.is_cut or was_none:
                leads_on = graph.nodes > 0
                # On a busy machine, other threads may have used the slice.
                had_time = 2 * (time.thread_time_ns() - worked) > time.perf_counter_ns() - began
                self._stuck = 0 if leads_on or graph.walked > 1 or not had_time else self._stuck + 1
                goes_on = self._stuck < STUCK_MAX
                if more_ms or was_none or (graph.walked == 1 and graph.followed >= WAY_SHARE * graph.nodes):
                    self._graph_ms = LONG_GRAPH_MS
                self._is_graph_cut = self._is_graph_cut or not goes_on
            self._is_resumed = goes_on
            self._starts = self._starts[: len(self._starts) - (max(1, graph.walked) - goes_on)]
            self._can_tell_saved = graph.can_tell
        finally:
            graph.close()
            memory.close()
            tensors.clear()
            paths.clear()
        return False

    def _put_replaced(self, now: Slice, numbers: list[int], paths: list[Any]) -> None:
        """Finds replacements for tensors that no longer exist. For example, `total = total + loss` makes a new tensor
        in every step, and its graph contains the graph of the previous tensor."""
        taken: set[int] = set()
        for at, path in enumerate(paths):
            if path is not None:
                continue
            if not now.is_left():
                self._are_starts_lost = True
                return
            paths[at] = self._replaced(now, numbers[at], taken)

    def _replaced(self, now: Slice, number: int, taken: set[int]) -> Any:
        chain = self._walk.chains([number])[0]
        path: list[Any] = []
        if len(chain) == 1:
            # The tensor is the value of a variable.
            near: Optional[list[Any]] = [value for _, value in self._roots.objects(chain)]
        else:
            path = self._paths(now, [chain[-2]])[0] or []
            near = _references(path[-1]) if path else None
        if near is None:
            # The holder was replaced as well, or it is wide. The graph of another tensor there may lead to blocks.
            self._are_starts_lost = True
            return None
        for value in near:
            is_tensor = id(type(value)) in now.tensors.class_ids
            if is_tensor and id(value) not in taken and self._walk.number(id(value)) is None:
                taken.add(id(value))
                return [*path, value]
        return None

    def _note(self, now: Slice, number: int, path: Any) -> None:
        """Describes at once how a tensor is held whose graph holds blocks. The tensor may be replaced before the search
        ends."""
        sizes = [size for _, size in self._blocks]
        answer = Answer(self._frames, now.torch, now.tensors.class_ids)
        group = Group(number, max(0, len(path) - 2), SAVED)
        self._noted[number] = answer.entry(group, answer.chain(path, self._root_of(number)), sizes)

    _can_tell_saved = True

    def _paths(self, now: Slice, numbers: list[int]) -> list[Any]:
        """The objects of chains; `None` for a chain that no longer exists."""
        roots = sorted(set(self._walk.roots(numbers)))
        objects = self._roots.objects([root for root in roots if self._roots.of(root) is not None])
        return self._walk.paths(now.rules, objects, numbers)

    # -- the heap ------------------------------------------------------------------------------------------------

    def _heap_tensors(self, now: Slice) -> bool:
        """Finds all tensors of the heap on the remaining blocks."""
        return self._in_heap.tensors(now, _facts.collector(self._is_collecting))

    def _heap_holders(self, now: Slice) -> bool:
        """Finds the referrers of these tensors, and the referrers of the referrers."""
        return "_heap_tensors" in self._cut or self._in_heap.holders(now)

    def _heap_rest(self, now: Slice) -> bool:
        """Finds the other tensors of the heap, if the stage `_heap_tensors` ended early and no cycle was found."""
        return self._in_heap.rest(now, _facts.collector(self._is_collecting))

    def _autocast_said(self, now: Slice) -> bool:
        """Takes the main thread's answer about autocast."""
        return self._in_heap.autocast_said(now)

    def _adopt(self, now: Slice, holder: Any, held: int) -> bool:
        """Continues the chain of a referrer that the walk from the roots has already visited. If the referrer is wide,
        the walk may have missed the reference. Returns whether the chain leads to the object at `held`."""
        number = self._walk.number(id(holder))
        if number is None:
            return False
        root = self._walk.roots([number])[0]
        return self._walk.adopt(now.rules, self._roots.objects([root]), number, held)

    # -- the answer ----------------------------------------------------------------------------------------------

    def _gather(self, now: Slice) -> bool:
        """Groups the blocks that have a known holder. Returns whether all are grouped."""
        if self._grouping is None:
            ways = self._ways()
            may_again = self._begun_again < BEGINNINGS_MAX and 2 * self._took_ns < self._wall_ns
            if may_again and self._are_lost(now, ways):
                self._begin_again()
                return False
            self._grouping = Grouping(ways)
        return self._grouping.go(functools.partial(self._may_gather, now), now.is_left)

    def _ways(self) -> list[Way]:
        found = [(block, number, "") for block, number in self._walk.found()]
        found += [(block, number, how) for block, (number, how) in self._in_graph.items()]
        chains = self._walk.chains([number for _, number, _ in found])
        ways = []
        for (block, _, how), chain in zip(found, chains):
            root = self._roots.of(chain[0])
            if root is not None and root.thread:
                ways.append(Way(block, how, chain, (root.name, root.owner), root.ident))
            else:
                ways.append(Way(block, how, chain))
        return ways

    def _are_lost(self, now: Slice, ways: list[Way]) -> bool:
        """Whether many chains no longer exist. Only some of the chains are checked."""
        ways = [way for way in ways if way.chain[-1] not in self._noted]
        some = [way.chain[-1] for way in ways[:: max(1, len(ways) // TRIED)]]
        lost = sum(path is None for path in self._paths(now, some))
        return lost * 4 > len(some)

    def _may_gather(self, now: Slice, number: int) -> bool:
        path = self._paths(now, [number])[0]
        if path is None:
            return False
        chain = Answer(self._frames, now.torch, now.tensors.class_ids).chain(path, self._root_of(number))
        return _words.may_gather(chain, len(path) - 1)

    def _root_of(self, number: int) -> Optional[Root]:
        return self._roots.of(self._walk.roots([number])[0])

    def _tell(self, now: Slice) -> bool:
        """Describes one group after the other, and finally the blocks without a chain."""
        if self._groups is None:
            self._groups = self._grouping.groups() if self._grouping is not None else []
        while self._groups:
            if len(self._entries) >= TOLD_MAX:
                # The remaining groups are smaller and are not described. Their blocks count as found.
                self._known += sum(len(group.blocks) for group in self._groups)
                break
            if not now.is_left():
                return False
            group = self._groups.pop(0)
            path = self._paths(now, [group.tensor])[0]
            sizes = [size for _, size in self._blocks]
            if path is None and group.how and group.tensor in self._noted:
                self._known += len(group.blocks)
                self._entries.append(_answer.about(self._noted[group.tensor], group.blocks, sizes))
                continue
            if path is None:
                # The tensor was released meanwhile.
                continue
            answer = Answer(self._frames, now.torch, now.tensors.class_ids)
            root = self._root_of(group.tensor)
            if len(path) == 2 and len(group.tensors) > 1 and root is not None and root.kind == "module":
                # They have nothing in common but the module: each is a variable of its own.
                self._groups[:0] = group.parted(VARIABLES_TOLD_MAX)
                continue
            self._known += len(group.blocks)
            self._entries.append(answer.entry(group, answer.chain(path, root), sizes))
        self._finish()
        return True

    def _finish(self) -> None:
        missing = self._missing()
        is_whole = self._in_heap.is_seen and not self._in_heap.has_jumped
        sizes = [size for _, size in self._blocks]
        # Before a block counts as held only by C++, all graphs of tensors that Python holds must have been walked.
        are_cut = self._is_graph_cut or self._are_starts_lost
        self._in_heap.loose.are_graphs_seen = not are_cut and not self._cut & CHAIN_STAGES
        loose = self._in_heap.loose.entries(missing, is_whole, sizes, _facts.collector(self._is_collecting))
        answer = _answer.empty(self._asked, [])
        entries = _answer.united(_merged(self._entries)) + loose
        entries.sort(key=lambda one: (-one["blocks"], -one["bytes"], one["sentence"]))
        explained = sum(one["blocks"] for one in loose)
        answer["holders"] = entries[: _answer.HOLDERS_MAX]
        answer["found_blocks"] = min(self._known + explained, len(self._blocks))
        objects = self._walk.counts()[0] + self._in_heap.objects
        answer["objects"] = objects
        unknown = len(self._blocks) - answer["found_blocks"]
        answer["complete"] = self._asked == len(self._blocks) and (not unknown or self._has_seen_all())
        answer["not_looked_at"] = [note[: _answer.SENTENCE_CHARS_MAX] for note in self._notes(unknown)]
        self.answer = answer

    def _has_seen_all(self) -> bool:
        return (
            self._in_heap.is_seen
            and self._in_heap.loose.are_holders_seen
            and not self._cut
            and self._frames.can_tell
            and not gc.get_freeze_count()
            and not self._walk.counts()[1]
            and not self._hooked
            and not self._unread
            and not self._is_graph_cut
            and not self._are_starts_lost
        )

    def _notes(self, unknown: int) -> list[str]:
        """Sentences about what was not searched."""
        notes: list[str] = []
        if not unknown:
            return notes
        if self._cut:
            notes.append("The budget ended the search; the holders that it found before that are listed.")
        if not self._in_heap.is_seen:
            notes.append("Not all objects of the heap were searched.")
        elif self._in_heap.has_jumped:
            notes.append("The search may have missed objects, because others were freed meanwhile.")
        if not self._frames.can_tell:
            notes.append("Local variables of running functions were not searched.")
        if not self._can_tell_saved:
            notes.append(
                "Tensors saved in autograd graphs were not searched, because hooks on them cannot be recognised."
            )
        if self._are_starts_lost:
            notes.append("Tensors that were replaced during the search may have held further blocks.")
        if self._is_graph_cut:
            notes.append("Some autograd graphs were not searched to their end, because they are too long.")
        if self._hooked:
            notes.append("Saved tensors with pack and unpack hooks were not searched, because the hooks would run.")
        if self._unread:
            notes.append("Graphs of views whose base was changed in place were not searched.")
        refused = self._walk.counts()[1]
        if refused:
            notes.append(
                f"{refused:,} tensors were not searched, because their classes have their own `__torch_dispatch__`."
            )
        notes.append("References from C and C++ code, such as extensions, cannot be found.")
        return notes


def _references(holder: Any) -> Optional[list[Any]]:
    """The objects to which an object refers, including the values of its attributes; `None` for a wide object."""
    attributes = _reading.instance_dict(holder)
    if _reading.length(holder) > REPLACED_AMONG or (attributes is not None and len(attributes) > REPLACED_AMONG):
        return None
    return gc.get_referents(holder) + ([] if attributes is None else list(attributes.values()))


def _merged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merges equal entries, such as those of similar parts of a model or of many objects of one class."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in entries:
        key = (one["kind"], one["sentence"], one["type"], one["is_bounded"], one["limit"])
        known = merged.get(key)
        if known is None:
            merged[key] = one
        else:
            known["blocks"] += one["blocks"]
            known["bytes"] += one["bytes"]
            known["numbers"] = sorted(known["numbers"] + one["numbers"])
    return list(merged.values())
