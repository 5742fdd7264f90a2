"""The search: from tensors upwards to whatever holds them, until something that lives by itself.

Guarantees: chains are true: each object was found to refer to the next by the interpreter's own traversal. What is
outside of running functions goes before their local variables. Passes over all objects are made only where the clock
says that one fits, each for a few objects at a time, because it compares every reference with each of them.
Refuses: to take a chain through modules, through other modules' functions, or through itself.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from itertools import compress
from typing import Any, Optional

from memctl_agent._holders import _frames, _reading
from memctl_agent._holders._clock import Clock
from memctl_agent._holders._frames import Frames
from memctl_agent._holders._tensors import Tensors

# Objects whose holders one pass looks for.
WIDTH = 16
# Objects of one type that are followed up at each level: what holds one of a thousand alike holds the others.
ALIKE = 8
# Levels from a tensor upwards.
LEVELS_MAX = 24
# Objects that are looked at below one root or container.
BELOW_MAX = 20_000
# Levels below a module's globals that are looked through before any pass.
NEAR_LEVELS = 12
# Of one object's items, so many are looked below; tensors among them are all taken.
WIDE = 4_096
# Containers with more items are left to passes, which are faster.
LONG = 50_000
# Objects are counted where less of the budget is spent: the figure is for people.
COUNTS_SHARE = 0.5
# Tensors that are asked for their address between two looks at the clock.
CHUNK = 1_024

# What no chain is followed through on the way down.
_WALLS = (type, types.ModuleType, types.FrameType, types.BuiltinFunctionType)

# Where files lie that are not the program's own.
_INSTALLED = ("site-packages", "dist-packages", f"python{sys.version_info[0]}.{sys.version_info[1]}")

# A root: what kind, and its names.
Root = tuple[str, str, str]


class Search:
    """What was seen, which object holds which, and where chains begin."""

    def __init__(self, tensors: Tensors, frames: Frames, clock: Clock) -> None:
        self._tensors, self._frames, self._clock = tensors, frames, clock
        # Everything seen, so that identities stay true; then each object's holder, and where chains begin.
        self.objects: dict[int, Any] = {}
        self.above: dict[int, int] = {}
        self.roots: dict[int, Root] = {}
        # Identity of a tensor on an asked block to the block's number; and all tensors, in the order of their making.
        self.wanted: dict[int, int] = {}
        self.all_tensors: list[Any] = []
        # Those that lie near, to which chains lead.
        self.near_tensors: list[Any] = []
        # Tensors that lie on no such block but whose graphs lead to one.
        self.sought: set[int] = set()
        self.looked_at = 0
        # Tensors that are not asked where they lie.
        self.refused = 0
        self.has_all_tensors = False
        # Of climbs: who was found to refer to whom, and which ends were reached.
        self._holders: dict[int, list[int]] = {}
        self._held: dict[int, list[int]] = {}
        self.unfinished: set[int] = set()
        self._namespaces: dict[int, str] = {}
        self._near: list[dict[str, Any]] = []
        self._own: set[int] = set()
        self._passable_types: dict[int, bool] = {}
        self.own(self.objects, self.above, self.roots, self.wanted, self.all_tensors, self._holders, self._held)
        self.own(self._namespaces, self._near, self.near_tensors, self.__dict__, frames.objects, frames.globals)

    def own(self, *things: Any) -> None:
        """These are the search's own and hold nothing."""
        self._own.update(map(id, things))

    def look_at_modules(self) -> None:
        """Notes the globals of all modules; the program's own ones first."""
        near: dict[int, tuple[bool, str, dict[str, Any]]] = {}
        for key, module in list(dict.items(sys.modules)):
            found = _reading.module_dict(module)
            if found is None or type(key) is not str or key.startswith("memctl_agent"):
                continue
            # `__main__` has other names where `multiprocessing` or a launcher gave it some.
            is_main = key == "__main__"
            if is_main or id(found) not in self._namespaces:
                self._namespaces[id(found)] = key
                if is_main or _is_near(found):
                    near[id(found)] = (not is_main, key, found)
        for identity, name in self._frames.globals.items():
            self._namespaces.setdefault(identity, name)
        for _, name, found in sorted(near.values(), key=lambda entry: entry[:2]):
            self._near.append(found)
            self.roots[self.keep(found)] = ("module", _reading.plain(name) or "?", "")

    def keep(self, thing: Any) -> int:
        """The identity of an object, which is kept until the search ends."""
        self.objects[id(thing)] = thing
        return id(thing)

    def look_at_heap(self) -> None:
        """Finds all tensors, and those that are wanted."""
        began = self._clock.took_ms
        # Each tensor refers to its class. This is several times faster than to look at the type of every object.
        found = gc.get_referrers(*self._tensors.classes, *self._tensors.refused)
        self._clock.passed(began)
        classes = self._tensors.class_ids
        self.all_tensors += compress(found, map(classes.__contains__, map(id, map(type, found))))
        refused = frozenset(map(id, self._tensors.refused))
        self.refused = sum(map(refused.__contains__, map(id, map(type, found))))
        del found
        self.has_all_tensors = True
        for number, tensor in enumerate(self.all_tensors):
            if number % CHUNK == CHUNK - 1 and not self._clock.is_left():
                self.has_all_tensors = False
                return
            self._meet(tensor)

    def count(self) -> None:
        """Counts the objects that passes went over, where there is time for it."""
        if self.has_all_tensors and self._clock.is_left(COUNTS_SHARE) and self._clock.fits_a_pass(is_wanted=False):
            self.looked_at = len(gc.get_objects())

    def _meet(self, tensor: Any) -> bool:
        block = self._tensors.block_of(tensor)
        if block is None:
            return False
        self.wanted[self.keep(tensor)] = block
        return True

    def look_near(self, share: float) -> None:
        """Looks a few levels below the globals of the program's own modules.

        Below those of the first one, on a machine that is busy with something else, too: it is read in a few
        milliseconds, and when these were waited for long no pass over all objects fits any more.
        """
        for namespace in self._near[:1]:
            if self._clock.is_work_left(share):
                self.spread(namespace, NEAR_LEVELS, share, self._clock.is_work_left)
        for namespace in self._near[1:]:
            if self._clock.is_left(share):
                self.spread(namespace, NEAR_LEVELS, share)

    def look_here(self, share: float) -> None:
        """Looks below the local variables of the functions that run in this thread, but not at a tensor in one."""
        values = self._frames.here()
        self.own(values, *values)
        for name, function, value in values:
            if not self._clock.is_left(share):
                return
            if gc.is_tracked(value) and self.passable(value) and not self.is_rooted(id(value)):
                self.roots[self.keep(value)] = ("local", name, function)
                self.spread(value, NEAR_LEVELS, share)

    def is_rooted(self, identity: int) -> bool:
        """Whether a chain leads to this object."""
        return identity in self.above or identity in self.roots

    def spread(
        self, top: Any, levels: int, share: float = 1.0, is_left: Optional[Callable[[float], bool]] = None
    ) -> None:
        """Finds wanted tensors below an object to which a chain leads."""
        is_left = is_left or self._clock.is_left
        level, seen = [top], 0
        for depth in range(levels):
            following: list[Any] = []
            self.own(level, following)
            for holder in level:
                if share < 1.0 and _reading.length(holder) > LONG:
                    continue
                below = gc.get_referents(holder)
                seen += len(below)
                for thing in self._worth(holder, below, depth + 1 < levels):
                    self._put_below(thing, holder, following)
                if seen > BELOW_MAX or not is_left(share):
                    return
            if not following:
                return
            level = following
            self.looked_at += len(level)

    def _worth(self, holder: Any, below: list[Any], with_others: bool) -> list[Any]:
        """The tensors of some objects, and at most a few thousand of the others."""
        self.own(below)
        classes = self._tensors.class_ids
        found = list(compress(below, map(classes.__contains__, map(id, map(type, below)))))
        if with_others:
            found += filter(self.passable, filter(gc.is_tracked, below[:WIDE]))
        if type(holder) is types.TracebackType:
            # Only from here a frame is not one that runs, or the caller of one.
            found += [
                thing for thing in below if type(thing) is types.FrameType and id(thing) not in self._frames.alive
            ]
        self.own(found)
        return found

    def _put_below(self, thing: Any, holder: Any, following: list[Any]) -> None:
        identity = id(thing)
        if identity in self._own or self.is_rooted(identity) or thing is holder:
            return
        if id(type(thing)) in self._tensors.class_ids:
            if not self.has_all_tensors and identity not in self.wanted and not self._meet(thing):
                # Its graph may lead to a block.
                self.near_tensors.append(thing)
                self.above[self.keep(thing)] = id(holder)
            elif identity in self.wanted or identity in self.sought:
                self.above[identity] = id(holder)
        else:
            self.above[self.keep(thing)] = id(holder)
            following.append(thing)

    def passable(self, thing: Any) -> bool:
        """Whether it makes sense to look below an object on the way down."""
        cls = type(thing)
        known = self._passable_types.get(id(cls))
        if known is None:
            known = id(cls) not in self._tensors.class_ids and not _reading.is_atom(thing)
            known = known and not any(base is wall for base in _reading.bases(cls) for wall in _WALLS)
            self._passable_types[id(cls)] = known
        if not known or id(thing) in self._namespaces:
            return False
        return cls is not types.FunctionType or thing.__closure__ is not None

    def climb(self, targets: list[Any]) -> None:
        """Follows upwards what holds some objects, until a chain leads to each or nothing more is found."""
        goals = {self.keep(target) for target in targets}
        frontier, done = sorted(goals, key=list(goals).index), set(goals)
        for _ in range(LEVELS_MAX):
            frontier = [identity for identity in frontier if self._is_needed(identity, goals)]
            if not frontier:
                break
            following: list[int] = []
            for at in range(0, len(frontier), WIDTH):
                if not self._clock.fits_a_pass():
                    self.unfinished |= set(frontier[at:])
                    self._fall_back(goals)
                    return
                self._pass(frontier[at : at + WIDTH], following, done)
            frontier = following
        self.unfinished |= set(frontier)
        self._fall_back(goals)

    def _pass(self, batch: list[int], following: list[int], done: set[int]) -> None:
        """One pass over all objects, for a few of them."""
        held = tuple(self.objects[identity] for identity in batch)
        began = self._clock.took_ms
        found = gc.get_referrers(*held)
        self.own(found, held)
        self._clock.passed(began)
        alike: dict[int, int] = {}
        wanted = frozenset(batch)
        for holder in found:
            identity = id(holder)
            if self._is_own(holder):
                continue
            refers = wanted.intersection(map(id, gc.get_referents(holder)))
            children = [child for child in batch if child in refers and child != identity]
            for child in children:
                _link(self._holders, child, identity)
                _link(self._held, identity, child)
            self.keep(holder)
            if self._root_of(holder):
                self._attach(identity)
            elif identity not in done:
                done.add(identity)
                kind = id(type(holder))
                alike[kind] = alike.get(kind, 0) + 1
                if alike[kind] <= ALIKE:
                    following.append(identity)

    def _is_own(self, holder: Any) -> bool:
        if id(holder) in self._own:
            return True
        cls = type(holder)
        if cls is types.FrameType:
            return _frames.is_own(holder.f_code)
        if cls is types.GeneratorType:
            return _frames.is_own(holder.gi_code)
        return False

    def _root_of(self, holder: Any) -> bool:
        """Whether a chain may begin at this object; a chain that leads to it counts as well."""
        identity = id(holder)
        if self.is_rooted(identity):
            return True
        name = self._namespaces.get(identity)
        if name is not None:
            self.roots[identity] = ("module", _reading.plain(name) or "?", "")
            return True
        if _reading.is_a(holder, type):
            self.roots[identity] = ("class", _reading.type_name(holder), "")
            return True
        return False

    def _attach(self, root: int) -> None:
        """Everything found below a root now has its chain."""
        level = [root]
        while level:
            following = []
            for holder in level:
                for child in self._held.get(holder, ()):
                    if not self.is_rooted(child):
                        self.above[child] = holder
                        following.append(child)
            level = following

    def _is_needed(self, identity: int, goals: set[int]) -> bool:
        """Whether an object holds, over however many others, one to which no chain leads yet."""
        seen, level = {identity}, [identity]
        while level:
            at = level.pop()
            if self.is_rooted(at):
                continue
            if at in goals:
                return True
            for child in self._held.get(at, ()):
                if child not in seen:
                    seen.add(child)
                    level.append(child)
        return False

    def ancestors(self, identity: int) -> list[int]:
        """What was found to hold an object, nearest first, the object itself before all."""
        found, level = [identity], [identity]
        seen = {identity}
        while level:
            following = []
            for at in level:
                for holder in self._holders.get(at, ()):
                    if holder not in seen:
                        seen.add(holder)
                        following.append(holder)
            found += following
            level = following
        return found

    def _fall_back(self, goals: set[int]) -> None:
        """Where no chain leads on, one may begin at a variable of a running function, else at a function."""
        for goal in goals:
            if self.is_rooted(goal):
                continue
            above = self.ancestors(goal)
            for identity in above:
                local = self._frames.running.get(identity)
                if local is not None and not self.is_rooted(goal):
                    self.roots[identity] = ("local", *local)
                    self._attach(identity)
            for identity in above:
                thing = self.objects[identity]
                if type(thing) is types.FunctionType and not self.is_rooted(goal):
                    self.roots[identity] = ("function", _reading.function_name(thing), "")
                    self._attach(identity)

    def holders_of(self, identity: int) -> list[int]:
        """What was found to refer to an object."""
        return self._holders.get(identity, [])

    def note_holder(self, held: int, holder: int) -> None:
        """Something else was found to refer to an object."""
        _link(self._holders, held, holder)

    def is_own(self, identity: int) -> bool:
        """Whether an object is the search's own."""
        return identity in self._own

    def path(self, identity: int) -> list[Any]:
        """The objects from a root to this one; none if no chain leads to it."""
        path, at = [identity], identity
        while at not in self.roots:
            found = self.above.get(at)
            if found is None or found in path:
                return []
            path.append(found)
            at = found
        return [self.objects[at] for at in reversed(path)]

    def loose_path(self, identity: int) -> list[Any]:
        """The objects from the farthest known holder to this one, where no chain begins at a root."""
        path, at = [identity], identity
        while True:
            found = next((one for one in self._holders.get(at, ()) if one not in path), None)
            if found is None or len(path) > LEVELS_MAX:
                return [self.objects[at] for at in reversed(path)]
            path.append(found)
            at = found

    def root(self, thing: Any) -> Optional[Root]:
        """How a chain begins at this object."""
        return self.roots.get(id(thing))

    def close(self) -> None:
        """Lets everything go."""
        for mine in (self.objects, self.all_tensors, self.near_tensors, self._near):
            mine.clear()


def _link(links: dict[int, list[int]], one: int, other: int) -> None:
    known = links.setdefault(one, [])
    if other not in known:
        known.append(other)


def _is_near(namespace: dict[str, Any]) -> bool:
    """Whether a module is the program's own, by where its file is."""
    file = _reading.said_by(namespace, "__file__")
    return file is not None and not any(place in file for place in _INSTALLED)
