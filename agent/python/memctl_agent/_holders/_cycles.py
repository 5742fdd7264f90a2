"""Finds unreachable cycles that the collector has not freed. Only the collector can free them.

Guarantees: the result is exact. The references to each object of a cycle are counted. If one of them comes from outside
the cycle, for example from C, the cycle is held and is not reported.
Cycles of more than a few hundred objects are not found.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

from memctl_agent._holders import _reading

# Maximum number of objects that are searched for a path from an object back to itself.
OBJECTS_MAX = 400
# Maximum number of references of one object that are followed.
WIDE = 256
# Types through which no cycle is searched.
_WALLS = (type, types.ModuleType, types.FrameType)


class Probe:
    """An object whose references are known."""


def around(holder: Any, held: int, known: int) -> str:
    """The types of the objects of an unreachable cycle that contains `holder`, in words; empty if there is none.

    The cycle must not contain the object with the id `held`. `known` is the number of the caller's references to
    `holder`.
    """
    cycle = _cycle_of(holder)
    # This function also has one reference.
    if not cycle or held in cycle or _is_held_from_outside(cycle, id(holder), known + 1):
        return ""
    names = {_reading.type_name(type(thing)) for thing in cycle.values()}
    # `dict` is left out, because CPython's version decides whether an object's attributes are in a dict.
    return ", ".join(f"`{name}`" for name in sorted(names - {"dict"} or names)[:4])


def _cycle_of(start: Any) -> dict[int, Any]:
    """The objects on paths from an object back to itself. Empty if there is no short path.

    The search begins at the referrer of a tensor. It finds the cycle only if the referrer is on the cycle. It does not
    find a cycle that only refers to the referrer.
    """
    above: dict[int, set[int]] = {}
    objects, level = {id(start): start}, [start]
    while level and len(objects) < OBJECTS_MAX:
        following = []
        for thing in level:
            for below in filter(gc.is_tracked, gc.get_referents(thing)[:WIDE]):
                if _reading.is_atom(below) or _is_wall(below):
                    continue
                above.setdefault(id(below), set()).add(id(thing))
                if id(below) not in objects:
                    objects[id(below)] = below
                    following.append(below)
        level = following
    found: dict[int, Any] = {}
    waiting = list(above.get(id(start), ()))
    while waiting:
        at = waiting.pop()
        if at not in found:
            found[at] = objects[at]
            waiting += above.get(at, ())
    return found if id(start) in found else {}


def _is_wall(thing: Any) -> bool:
    cls = type(thing)
    usual = cls is dict or cls is list or cls is tuple
    return not usual and any(base is wall for base in _reading.bases(cls) for wall in _WALLS)


def _is_held_from_outside(cycle: dict[int, Any], start: int, known: int) -> bool:
    """Whether an object outside the cycle refers to one of its objects. The known references to the start do not
    count."""
    inside = dict.fromkeys(cycle, 0)
    inside[start] += known
    for thing in cycle.values():
        for child in map(id, gc.get_referents(thing)):
            if child in inside:
                inside[child] += 1
    thing = None
    return any(count > inside[at] for at, count in _references(cycle))


def _references(cycle: dict[int, Any]) -> list[tuple[int, int]]:
    """The number of references to each of these objects, without the references of this search. The references of this
    search are counted on a probe, to which nothing else refers."""
    probe = Probe()
    also = {**cycle, id(probe): probe}
    counts = [(at, sys.getrefcount(also[at])) for at in also]
    # This search has two references to each object: the dict `also` and the variable `probe`, or both dicts.
    alone = counts[-1][1]
    return [(at, count - alone) for at, count in counts[:-1]]
