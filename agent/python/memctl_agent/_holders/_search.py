"""One search, in slices: from where leaks live to the whole heap, and then the answer.

The stages: modules by how near they are; what lies below the globals of the program that was started; the variables
of all threads; graphs of the tensors that were found; the program's other modules; what was put off because it is
wide; then, for blocks that remain, all tensors of the heap and what refers to these; the globals of installed
modules; the answer.
Guarantees: between two slices there are numbers and texts alone. A slice ends when its time is over, but for one
object's visit; what it found is looked at again before it is told. The collector is off within a slice, and
afterwards as it was.
Refuses: to go on when the budget is spent; what was not looked at is said.

(Over 400 lines: the stages share what was found so far, and each is read beside the one before.)
"""

from __future__ import annotations

import functools
import gc
import sys
import time
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
# Tensors whose graphs are looked at together.
STARTS_AT_ONCE = 64
# Until which share of the budget the look at graphs may go on as long as each slice finds something.
GRAPHS_SHARE_MAX = 0.85
# How much longer slices may be for a graph that is too long for one.
LONG_GRAPH_MS = 5.0
# Slices after which one is given up that does not lead on.
STUCK_MAX = 4
# Groups of which is told, before those that say the same are put together.
TOLD_MAX = 24
# How often the walk is begun again, and chains that are tried before it is told of them.
BEGINNINGS_MAX = 2
TRIED = 32
# Modules that are sorted between two looks at the clock.
MODULES_BETWEEN_LOOKS = 32
# Modules that become roots together.
MODULES_AT_ONCE = 128

# Until which share of the budget a stage may go on.
_SHARES = {
    "_main": 0.3,
    "_variables": 0.5,
    "_graphs": 0.55,
    "_modules": 0.6,
    "_beside": 0.65,
    "_own_modules": 0.7,
    "_rest": 0.75,
    "_heap_tensors": 0.8,
    "_heap_holders": 0.95,
    "_heap_rest": 0.95,
    "_installed": 0.95,
}
# Those that look for chains, and for graphs to which these lead.
CHAIN_STAGES = {"_main", "_variables", "_graphs", "_modules", "_beside", "_own_modules", "_rest"}
# On a machine that does other things, too, a thread waits more than it works: it stops to search when it has worked
# for its budget, or when so many times as much has passed, but for searches that may take less than this.
WAITS = 2
WAITS_MS_MAX = 100.0


class Search:
    """See the module."""

    def __init__(self, native: Any, blocks: Sequence[tuple[int, int]], asked: int, budget_ms: float) -> None:
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
        self._near: dict[int, list[str]] = {BESIDE: _roots.main_names(), OWN: [], INSTALLED: []}
        self._namespace_ids: set[int] = set()
        self._walk: Any = native.Walk(self._blocks)
        self._frames = Frames(native)
        self._roots = Roots(self._frames)
        # Numbers of roots by the stage that made them, and modules that are to become some.
        self._staged: dict[str, list[int]] = {}
        self._waiting: dict[str, list[str]] = {}
        self._installed_at = 0
        self._threads: Optional[list[int]] = None
        self._starts: Optional[list[int]] = None
        self._starts_seen = 0
        self._in_graph: dict[int, tuple[int, str]] = {}
        self._hooked = self._unread = 0
        self._is_graph_cut = False
        self._do_graphs_lead_on = self._is_resumed = False
        self._stuck = 0
        # How a tensor is held whose graph holds blocks, as it was when that was found.
        self._noted: dict[int, dict[str, Any]] = {}
        # What of graphs was gone through, and how much more time the next slice has for one.
        self._done_nodes: set[tuple[int, int]] = set()
        self._graph_ms = 0.0
        self._in_heap = InHeap(native, self._blocks, self._missing, self._adopt)
        self._grouping: Optional[Grouping] = None
        self._groups: Optional[list[Group]] = None
        self._entries: list[dict[str, Any]] = []
        self._known = 0
        self._cut: set[str] = set()
        # How often the walk was begun again, and the time that had been spent by then.
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
        """Forgets the walk: a variable where many chains began has another value, and what was below it was seen."""
        self._forget()
        self._begun_again += 1
        self._spared_ns = self._worked_ns, self._took_ns

    def _forget(self) -> None:
        self._walk = self._native.Walk(self._blocks)
        self._grouping = self._threads = self._starts = None
        self._roots = Roots(self._frames)
        self._staged, self._waiting, self._in_graph, self._noted = {}, {}, {}, {}
        self._done_nodes.clear()
        self._starts_seen = self._installed_at = 0
        self._stages = self._all_stages()

    def renew(self, blocks: Sequence[tuple[int, int]]) -> bool:
        """Begins again with other blocks, with what is left of the budget; whether enough is."""
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
        """Goes on for one slice; how long it took in milliseconds."""
        began, worked = time.perf_counter_ns(), time.thread_time_ns()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._is_collecting = was_enabled
            self._go(began + int(slice_ms * 1e6))
        except Exception as fault:
            # Its own text may be the program's.
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
                # Where no collector comes by a cycle would stay.
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
                self._asked, ["Tensors were not looked at: this torch does not tell where they lie."]
            )
            return
        # Neither subclasses nor modes of the program see what is asked of tensors here.
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
                # (The answer is given whatever it takes.)
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
            "_own_modules",
            "_installed",
        ):
            # What this stage had no time for is looked at when nothing else is left.
            self._walk.shelve()
        self._stages.pop(0)

    # -- from the roots down -------------------------------------------------------------------------------------

    def _missing(self) -> set[int]:
        """Blocks for which nothing is known."""
        known = {block for block, _ in self._walk.found()}
        return set(range(len(self._blocks))) - known - set(self._in_graph)

    def _modules(self, now: Slice) -> bool:
        """Sorts all modules by how near they are."""
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
        """Makes modules roots of a stage; whether there are no more of them."""
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
        """Goes on below the roots of some stages; whether nothing waits there."""
        roots = self._roots.objects([number for stage in stages for number in self._staged.get(stage, ())])
        is_done = self._walk.go(now.rules, roots, now.left_us(), is_late)
        return is_done or self._walk.has_all()

    def _main(self, now: Slice) -> bool:
        """What lies below the globals of the program that was started."""
        if "main" not in self._staged:
            self._put_modules(now, "main", ["__main__"])
        return self._go_below(now, "main")

    def _variables(self, now: Slice) -> bool:
        """What lies below the variables of functions that run, in all threads."""
        if not self._missing():
            return True
        if self._threads is None:
            self._threads = _roots.threads()
        main = _roots.main_thread()
        # Once for all threads: of hundreds that wait it takes a while.
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

    def _beside(self, now: Slice) -> bool:
        """What lies below the globals of modules beside the program that was started."""
        return not self._missing() or self._of_modules(now, "beside", self._near[BESIDE])

    def _own_modules(self, now: Slice) -> bool:
        """As that, of its other modules."""
        return not self._missing() or self._of_modules(now, "own", self._near[OWN])

    def _of_modules(self, now: Slice, stage: str, keys: list[str]) -> bool:
        # (Their names stay: they say which classes are the program's own.)
        if stage not in self._waiting:
            self._waiting[stage] = list(keys)
        return self._put_modules(now, stage, self._waiting[stage]) and self._go_below(now, stage)

    def _rest(self, now: Slice) -> bool:
        """What was put off."""
        return not self._missing() or self._go_below(now, "main", "variables", "beside", "own", is_late=True)

    def _installed(self, now: Slice) -> bool:
        """What lies below the globals of installed modules, some of them after the others."""
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
        """Whether there are tensors whose graphs were not looked at, and blocks for which that matters."""
        return bool((self._starts or self._walk.starts()[self._starts_seen :]) and self._missing())

    def _graphs(self, now: Slice) -> bool:
        """Blocks to which the graphs of tensors lead to which a chain leads."""
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
        tensors = [None if path is None else path[-1] for path in paths]
        # Another tensor is where one was whose graph was being gone through.
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
            # One that is longer than a slice is gone on with in the next one, as long as that leads on.
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

    def _note(self, now: Slice, number: int, path: Any) -> None:
        """Says at once how a tensor is held whose graph holds blocks: by the end another may be in its place."""
        sizes = [size for _, size in self._blocks]
        answer = Answer(self._frames, now.torch, now.tensors.class_ids)
        group = Group(number, max(0, len(path) - 2), SAVED)
        self._noted[number] = answer.entry(group, answer.chain(path, self._root_of(number)), sizes)

    _can_tell_saved = True

    def _paths(self, now: Slice, numbers: list[int]) -> list[Any]:
        """The objects of chains; none of those that are there no more."""
        roots = sorted(set(self._walk.roots(numbers)))
        objects = self._roots.objects([root for root in roots if self._roots.of(root) is not None])
        return self._walk.paths(now.rules, objects, numbers)

    # -- the heap ------------------------------------------------------------------------------------------------

    def _heap_tensors(self, now: Slice) -> bool:
        """All tensors on blocks that remain, wherever they are."""
        return self._in_heap.tensors(now, _facts.collector(self._is_collecting))

    def _heap_holders(self, now: Slice) -> bool:
        """What refers to these, and to what refers to that."""
        return "_heap_tensors" in self._cut or self._in_heap.holders(now)

    def _heap_rest(self, now: Slice) -> bool:
        """The other tensors, where most blocks had theirs and are in no cycle."""
        return self._in_heap.rest(now, _facts.collector(self._is_collecting))

    def _autocast_said(self, now: Slice) -> bool:
        """What the main thread says of autocast."""
        return self._in_heap.autocast_said(now)

    def _adopt(self, now: Slice, holder: Any, held: int) -> bool:
        """Whether an object was seen, and was too wide to have been looked through to what it holds."""
        number = self._walk.number(id(holder))
        if number is None:
            return False
        root = self._walk.roots([number])[0]
        return self._walk.adopt(now.rules, self._roots.objects([root]), number, held)

    # -- the answer ----------------------------------------------------------------------------------------------

    def _gather(self, now: Slice) -> bool:
        """Makes groups of the blocks that are known."""
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
        """Whether many chains lead nowhere any more, by some of them."""
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
        """Tells of one group after the other, and then of what no chain leads to."""
        if self._groups is None:
            self._groups = self._grouping.groups() if self._grouping is not None else []
        while self._groups:
            if len(self._entries) >= TOLD_MAX:
                # Smaller ones: that they are held is known.
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
                # It was let go meanwhile.
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
        # What the graph of a tensor keeps that Python holds is not held by C++ alone.
        self._in_heap.loose.are_graphs_seen = not self._is_graph_cut and not self._cut & CHAIN_STAGES
        loose = self._in_heap.loose.entries(missing, is_whole, sizes, _facts.collector(self._is_collecting))
        told = _answer.empty(self._asked, [])
        entries = _merged(self._entries) + loose
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
        )

    def _notes(self, unknown: int) -> list[str]:
        """What was not looked at, in sentences."""
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


def _merged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries that say the same become one: the parts of a model that are alike, many objects of one class."""
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
