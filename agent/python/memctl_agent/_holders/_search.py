"""One search, in slices: from where leaks usually are to the whole heap, and then the answer.

The stages: objects below the globals of the started program; the variables of all threads; graphs of the tensors that
were found; the variables of suspended generators; sorting of all modules by nearness; the program's other modules;
graphs again; wide objects that were deferred; then, for the remaining blocks, all tensors of the heap and their
referrers; the globals of installed modules; the main thread's answer about autocast; the answer.
Guarantees: between two slices only numbers and texts are kept. A slice ends when its time is over, except for one
object's visit; results are verified before they are reported. The collector is off within a slice, and restored
afterwards.
Refuses: to continue when the budget is spent; the answer says what was not searched.

(Over 400 lines: the stages share what was found so far, and each is read beside the previous one.)
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

# How long a slice is.
SLICE_MS = 2.0
# Tensors whose graphs are walked together.
STARTS_AT_ONCE = 64
# Up to this share of the budget, graphs may continue while each slice finds something.
GRAPHS_SHARE_MAX = 0.85
# How much longer slices may be for a graph that is too long for one.
LONG_GRAPH_MS = 5.0
# A graph is given up after this many slices without progress.
STUCK_MAX = 4
# Groups that are reported, before equal ones are merged.
TOLD_MAX = 24
# Maximum number of restarts of the walk.
BEGINNINGS_MAX = 2
# About how many chains are checked to decide whether the walk is restarted.
TRIED = 32
# References of an object that are searched for the tensor that replaced another one.
REPLACED_AMONG = 4_096
# Modules that are sorted between two checks of the clock.
MODULES_BETWEEN_LOOKS = 32
# Modules that become roots together.
MODULES_AT_ONCE = 128

# Up to which share of the budget a stage may continue.
_SHARES = {
    "_main": 0.3,
    "_variables": 0.5,
    "_graphs": 0.55,
    "_suspended": 0.62,
    "_modules": 0.64,
    "_beside": 0.67,
    "_own_modules": 0.7,
    "_rest": 0.75,
    "_heap_tensors": 0.8,
    "_heap_holders": 0.95,
    "_heap_rest": 0.95,
    "_installed": 0.95,
}
# Stages that look for chains, and for graphs to which these lead.
CHAIN_STAGES = {"_main", "_variables", "_graphs", "_suspended", "_modules", "_beside", "_own_modules", "_rest"}
# On a busy machine a thread waits more than it works. So a search stops when it has worked for its budget, or when
# `WAITS` times its budget has passed. This time is at most `WAITS_MS_MAX`, or the budget if the budget is longer.
WAITS = 2
WAITS_MS_MAX = 100.0


class Search:
    """See the module."""

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
        # Indices of roots by the stage that made them, and modules that are to become roots.
        self._staged: dict[str, list[int]] = {}
        self._waiting: dict[str, list[str]] = {}
        self._installed_at = 0
        self._threads: Optional[list[int]] = None
        # Where generators are looked for, and whether all were seen.
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
        # How a tensor whose graph holds blocks is held, as of when that was found.
        self._noted: dict[int, dict[str, Any]] = {}
        # Graph nodes that are finished, and how much more time the next slice has for one graph.
        self._done_nodes: set[tuple[int, int]] = set()
        self._graph_ms = 0.0
        self._in_heap = InHeap(native, self._blocks, self._missing, self._adopt)
        self._grouping: Optional[Grouping] = None
        self._groups: Optional[list[Group]] = None
        self._entries: list[dict[str, Any]] = []
        self._known = 0
        self._cut: set[str] = set()
        # How often the walk was restarted, and the time spent by then.
        self._begun_again = 0
        self._spared_ns = (0, 0)
        self._stages = self._all_stages()

    def _all_stages(self) -> list[Callable[[Slice], bool]]:
        return [
            self._main,
            self._variables,
            self._graphs,
            self._suspended,
            self._modules,
            self._beside,
            self._own_modules,
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
        """Discards the walk: a variable where many chains began has another value, and objects below it were
        visited."""
        self._forget()
        self._begun_again += 1
        self._spared_ns = self._worked_ns, self._took_ns

    def _forget(self) -> None:
        self._walk = self._native.Walk(self._blocks)
        self._grouping = self._threads = self._starts = self._generators = None
        self._seen_generators, self._are_generators_seen = [], False
        self._roots = Roots(self._frames)
        self._staged, self._waiting, self._in_graph, self._noted = {}, {}, {}, {}
        self._done_nodes.clear()
        self._starts_seen = self._installed_at = 0
        self._are_starts_lost = False
        self._stages = self._all_stages()

    def renew(self, blocks: Sequence[tuple[int, int]]) -> bool:
        """Restarts with other blocks and the rest of the budget; returns whether that is enough."""
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
        """Continues for one slice; returns its duration in milliseconds."""
        began, worked = time.perf_counter_ns(), time.thread_time_ns()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._is_collecting = was_enabled
            self._go(began + int(slice_ms * 1e6))
        except Exception as fault:
            # The exception's own text may be the program's.
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
                # Without a collector, a cycle made here would stay.
                self._stages.clear()
                self._in_heap.close()
                self.answer["took_ms"] = round(self._took_ns / 1e6, 3)
                self.answer["longest_ms"] = round(self._longest_ns / 1e6, 3)
                self.answer["slices"] = self._slices
        return took / 1e6

    def _go(self, end_ns: int) -> None:
        torch = sys.modules.get("torch")
        if getattr(torch, "Tensor", None) is None:
            self.answer = _answer.empty(self._asked, ["Nothing was looked at: torch is not imported."])
            return
        if getattr(torch._C, "_data_address", None) is None:  # type: ignore[union-attr]
            self.answer = _answer.empty(
                self._asked, ["Tensors were not searched: this torch does not report their addresses."]
            )
            return
        # Subclasses and modes of the program do not see these accesses to tensors.
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
                # (The answer is given in any case.)
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
            # The rest of this stage is searched when nothing else is left.
            self._walk.shelve()
        self._stages.pop(0)

    # -- from the roots down -------------------------------------------------------------------------------------

    def _missing(self) -> set[int]:
        """Blocks without an explanation."""
        known = {block for block, _ in self._walk.found()}
        return set(range(len(self._blocks))) - known - set(self._in_graph)

    def _modules(self, now: Slice) -> bool:
        """Sorts all modules by nearness."""
        if not self._missing():
            return True
        if self._keys is None:
            keys = [key for key in list(sys.modules) if type(key) is str and not key.startswith("memctl_agent")]
            self._keys = keys
            # It has other names where `multiprocessing` or a launcher gave it some.
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
        """Makes modules roots of a stage; returns whether there are no more of them."""
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
        """Continues below the roots of some stages; returns whether nothing is left there."""
        roots = self._roots.objects([number for stage in stages for number in self._staged.get(stage, ())])
        is_done = self._walk.go(now.rules, roots, now.left_us(), is_late)
        return is_done or self._walk.has_all()

    def _main(self, now: Slice) -> bool:
        """Objects below the globals of the started program."""
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
        # Once for all threads: with hundreds it takes a while.
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
        """Objects below the variables of suspended generators and coroutines: what a loop iterates has no name."""
        if not self._missing():
            return True
        if self._generators is None:
            self._generators = self._native.Heap([])
        if not self._are_generators_seen and not self._seen_generators:
            self._are_generators_seen, found = self._generators.generators(now.left_us() // 2)
            # Weakly: those that do not fit into this slice are the next one's.
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
        """The same for its other modules."""
        return not self._missing() or self._of_modules(now, "own", self._near[OWN])

    def _of_modules(self, now: Slice, stage: str, keys: list[str]) -> bool:
        # (Their names stay: they determine which classes are the program's own.)
        if stage not in self._waiting:
            self._waiting[stage] = list(keys)
        return self._put_modules(now, stage, self._waiting[stage]) and self._go_below(now, stage)

    def _rest(self, now: Slice) -> bool:
        """What was deferred."""
        return not self._missing() or self._go_below(
            now, "main", "variables", "suspended", "beside", "own", is_late=True
        )

    def _installed(self, now: Slice) -> bool:
        """Objects below the globals of installed modules, group by group."""
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
        """Whether there are tensors whose graphs were not walked, and blocks for which that matters."""
        return bool((self._starts or self._walk.starts()[self._starts_seen :]) and self._missing())

    def _graphs(self, now: Slice) -> bool:
        """Blocks reached by the graphs of tensors with a chain."""
        if self._starts is None:
            starts: list[int] = self._walk.starts()[self._starts_seen :]
            self._starts, self._starts_seen = starts, self._starts_seen + len(starts)
        missing = self._missing()
        if not missing or not self._starts:
            self._starts = None
            return True
        numbers = self._starts[-STARTS_AT_ONCE:]
        numbers.reverse()
        paths = self._paths(now, numbers)
        self._put_replaced(now, numbers, paths)
        tensors = [None if path is None else path[-1] for path in paths]
        # The tensor whose graph was being walked has gone.
        self._is_graph_cut = self._is_graph_cut or (self._is_resumed and tensors[0] is None)
        memory, more_ms = Memory(), self._graph_ms
        self._graph_ms = 0.0
        is_left = functools.partial(now.is_left_for_graph, more_ms)
        graph = Graph(now.torch, now.tensors, memory, is_left, self._done_nodes)
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
            # A graph that is longer than a slice continues in the next one, while there is progress.
            goes_on, was_none = False, graph.walked == 0
            if graph.is_cut or was_none:
                leads_on = graph.note_done()
                self._stuck = 0 if leads_on or graph.walked > 1 else self._stuck + 1
                goes_on = self._stuck < STUCK_MAX
                if more_ms or was_none or (graph.walked == 1 and not leads_on):
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
        """Puts paths to what stands where lost tensors stood: `total = total + loss` makes another one in every step,
        and its graph contains that of the one before."""
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
            # A variable itself.
            near: Optional[list[Any]] = [value for _, value in self._roots.objects(chain)]
        else:
            path = self._paths(now, [chain[-2]])[0] or []
            near = _references(path[-1]) if path else None
        if near is None:
            # What held it was replaced as well, or is wide: a graph may hang there.
            self._are_starts_lost = True
            return None
        for value in near:
            is_tensor = id(type(value)) in now.tensors.class_ids
            if is_tensor and id(value) not in taken and self._walk.number(id(value)) is None:
                taken.add(id(value))
                return [*path, value]
        return None

    def _note(self, now: Slice, number: int, path: Any) -> None:
        """Describes at once how a tensor whose graph holds blocks is held: by the end it may have been replaced."""
        sizes = [size for _, size in self._blocks]
        answer = Answer(self._frames, now.torch, now.tensors.class_ids)
        group = Group(number, max(0, len(path) - 2), SAVED)
        self._noted[number] = answer.entry(group, answer.chain(path, self._root_of(number)), sizes)

    _can_tell_saved = True

    def _paths(self, now: Slice, numbers: list[int]) -> list[Any]:
        """The objects of chains; None for chains that no longer exist."""
        roots = sorted(set(self._walk.roots(numbers)))
        objects = self._roots.objects([root for root in roots if self._roots.of(root) is not None])
        return self._walk.paths(now.rules, objects, numbers)

    # -- the heap ------------------------------------------------------------------------------------------------

    def _heap_tensors(self, now: Slice) -> bool:
        """All tensors on the remaining blocks, wherever they are."""
        return self._in_heap.tensors(now, _facts.collector(self._is_collecting))

    def _heap_holders(self, now: Slice) -> bool:
        """The referrers of these, and their referrers."""
        return "_heap_tensors" in self._cut or self._in_heap.holders(now)

    def _heap_rest(self, now: Slice) -> bool:
        """The other tensors, if most blocks had theirs and are in no cycle."""
        return self._in_heap.rest(now, _facts.collector(self._is_collecting))

    def _autocast_said(self, now: Slice) -> bool:
        """The main thread's answer about autocast."""
        return self._in_heap.autocast_said(now)

    def _adopt(self, now: Slice, holder: Any, held: int) -> bool:
        """Whether an object was seen that was too wide to be searched for what it holds."""
        number = self._walk.number(id(holder))
        if number is None:
            return False
        root = self._walk.roots([number])[0]
        return self._walk.adopt(now.rules, self._roots.objects([root]), number, held)

    # -- the answer ----------------------------------------------------------------------------------------------

    def _gather(self, now: Slice) -> bool:
        """Groups the blocks with an explanation."""
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
        """Whether many chains no longer exist, judging by some of them."""
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
        """Describes one group after the other, and then blocks without a chain."""
        if self._groups is None:
            self._groups = self._grouping.groups() if self._grouping is not None else []
        while self._groups:
            if len(self._entries) >= TOLD_MAX:
                # Smaller ones: it is known that they are held.
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
                # It was released meanwhile.
                continue
            self._known += len(group.blocks)
            answer = Answer(self._frames, now.torch, now.tensors.class_ids)
            root = self._root_of(group.tensor)
            self._entries.append(answer.entry(group, answer.chain(path, root), sizes))
        self._finish()
        return True

    def _finish(self) -> None:
        missing = self._missing()
        is_whole = self._in_heap.is_seen and not self._in_heap.has_jumped
        sizes = [size for _, size in self._blocks]
        # What the graph of a Python-held tensor keeps is not held by C++ only.
        are_cut = self._is_graph_cut or self._are_starts_lost
        self._in_heap.loose.are_graphs_seen = not are_cut and not self._cut & CHAIN_STAGES
        loose = self._in_heap.loose.entries(missing, is_whole, sizes, _facts.collector(self._is_collecting))
        told = _answer.empty(self._asked, [])
        entries = _answer.united(_merged(self._entries)) + loose
        entries.sort(key=lambda one: (-one["blocks"], -one["bytes"], one["sentence"]))
        explained = sum(one["blocks"] for one in loose)
        told["holders"] = entries[: _answer.HOLDERS_MAX]
        told["found_blocks"] = min(self._known + explained, len(self._blocks))
        objects = self._walk.counts()[0] + self._in_heap.objects
        told["objects"] = objects
        unknown = len(self._blocks) - told["found_blocks"]
        told["complete"] = self._asked == len(self._blocks) and (not unknown or self._has_seen_all())
        told["not_looked_at"] = [note[: _answer.SENTENCE_CHARS_MAX] for note in self._notes(unknown)]
        self.answer = told

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
        """What was not searched, in sentences."""
        notes: list[str] = []
        if not unknown:
            return notes
        if self._cut:
            notes.append("The search ended with its budget; what was found until then is here.")
        if not self._in_heap.is_seen:
            notes.append("The heap was not looked at as a whole.")
        elif self._in_heap.has_jumped:
            notes.append("Objects that died meanwhile may have hidden others from the search.")
        if not self._frames.can_tell:
            notes.append("Local variables of running functions were not looked at.")
        if not self._can_tell_saved:
            notes.append(
                "Tensors saved in autograd graphs were not looked at: hooks on them cannot be recognised here."
            )
        if self._are_starts_lost:
            notes.append("Tensors that were replaced during the search may lead to more.")
        if self._is_graph_cut:
            notes.append("Graphs that are too long for one slice were not looked at to their end.")
        if self._hooked:
            notes.append("Saved tensors with pack and unpack hooks were not looked at: here that would run the hooks.")
        if self._unread:
            notes.append("Graphs of views whose base was changed in place were not looked at.")
        refused = self._walk.counts()[1]
        if refused:
            notes.append(
                f"{refused:,} tensors of classes with their own `__torch_dispatch__` were not asked where they lie."
            )
        notes.append("What C and C++ extensions hold, other threads' C stacks included, is not seen.")
        return notes


def _references(holder: Any) -> Optional[list[Any]]:
    """What an object refers to, its attributes included; none for a wide one."""
    attributes = _reading.instance_dict(holder)
    if _reading.length(holder) > REPLACED_AMONG or (attributes is not None and len(attributes) > REPLACED_AMONG):
        return None
    return gc.get_referents(holder) + ([] if attributes is None else list(attributes.values()))


def _merged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merges equal entries: similar parts of a model, many objects of one class."""
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
