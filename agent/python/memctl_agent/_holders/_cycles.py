"""Finds unreachable cycles, which only the collector would free, and which it has not freed.

Guarantees: the result is exact. The references to each object of a cycle are counted. If one of them is not from
another object of the cycle, but for example from C, the cycle is held.
Refuses: cycles of more than a few hundred objects.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

from memctl_agent._holders import _reading

# Maximum number of objects among which a path from an object back to itself is searched.
OBJECTS_MAX = 400
# Maximum number of references of one object that are followed.
WIDE = 256
# Types through which no cycle is searched.
_WALLS = (type, types.ModuleType, types.FrameType)


class Probe:
    """An object with known references."""


def around(holder: Any, held: int, known: int) -> str:
    """The types of an unreachable cycle that leads to an object, in words; empty if there is none.

    `known` is the number of the caller's references to the start.
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

    The search begins at the referrer of a tensor. That object is on the cycle. If it is only attached to the cycle, the
    cycle is not visible from there.
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
    """Whether one of these objects has a reference from another object, apart from the known references to the
    start."""
    inside = dict.fromkeys(cycle, 0)
    inside[start] += known
    for thing in cycle.values():
        for child in map(id, gc.get_referents(thing)):
            if child in inside:
                inside[child] += 1
    thing = None
    return any(count > inside[at] for at, count in _references(cycle))


def _references(cycle: dict[int, Any]) -> list[tuple[int, int]]:
    """The number of references of each of these objects, without those of this search. A probe without other references
    is used for comparison."""
    probe = Probe()
    also = {**cycle, id(probe): probe}
    counts = [(at, sys.getrefcount(also[at])) for at in also]
    # The probe is in this dict and in a variable. Each of the others is in both dicts.
    alone = counts[-1][1]
    return [(at, count - alone) for at, count in counts[:-1]]
