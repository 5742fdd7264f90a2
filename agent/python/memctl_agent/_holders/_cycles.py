"""Cycles that nothing reaches: what only the collector would free, and has not.

Guarantees: exact. The references to each object of a cycle are counted; one that no other object of the cycle accounts
for, as one from C has it, means that the cycle is held.
Refuses: cycles of more than a few hundred objects.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

from memctl_agent._holders import _reading

# Objects among which a way from one back to itself is looked for.
OBJECTS_MAX = 400
# References of one object that are followed.
WIDE = 256
# What no cycle is looked for through.
_WALLS = (type, types.ModuleType, types.FrameType)


class Probe:
    """An object of which all references are known."""


def around(holder: Any, held: int, known: int) -> str:
    """The types of a cycle that nothing holds and that leads to an object, in words; empty if there is none.

    `known`: references of the caller to what it begins with.
    """
    cycle = _cycle_of(holder)
    # This function has one, too.
    if not cycle or held in cycle or _is_held_from_outside(cycle, id(holder), known + 1):
        return ""
    names = {_reading.type_name(type(thing)) for thing in cycle.values()}
    # An object's attributes are in a dict or not, as CPython likes.
    return ", ".join(f"`{name}`" for name in sorted(names - {"dict"} or names)[:4])


def _cycle_of(start: Any) -> dict[int, Any]:
    """The objects on ways from an object back to itself; none if there is no short one.

    It begins at what holds a tensor: that is on the cycle, or hangs on it, which cannot be seen from there.
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
    """Whether one of these objects has a reference that none of them is, nor one of those to the start that are
    known."""
    inside = dict.fromkeys(cycle, 0)
    inside[start] += known
    for thing in cycle.values():
        for child in map(id, gc.get_referents(thing)):
            if child in inside:
                inside[child] += 1
    thing = None
    return any(count > inside[at] for at, count in _references(cycle))


def _references(cycle: dict[int, Any]) -> list[tuple[int, int]]:
    """How many references each of these objects has, but for those of this search: as a probe has them that nothing
    else refers to."""
    probe = Probe()
    also = {**cycle, id(probe): probe}
    counts = [(at, sys.getrefcount(also[at])) for at in also]
    # The probe is in this dict and in a variable, as each of the others is in both dicts.
    alone = counts[-1][1]
    return [(at, count - alone) for at, count in counts[:-1]]
