"""Cycles that nothing reaches: what only the collector would free, and has not.

Guarantees: exact. The references to each object of a cycle are counted; one that no other object of the cycle accounts
for, as one from C has it, means that the cycle is held.
Refuses: cycles of more than a few hundred objects.
"""

from __future__ import annotations

import gc
import sys

from memctl_agent._holders._search import WIDE, Search

# Objects among which a way from one back to itself is looked for.
OBJECTS_MAX = 500


class Probe:
    """An object of which all references are known."""


def is_garbage(search: Search, identity: int) -> bool:
    """Whether nothing holds an object but objects that hold each other. Needs no pass over all objects."""
    above = search.ancestors(identity)
    others = [at for at in above if at != identity]
    if others and search.unfinished.isdisjoint(above) and not _is_held_from_outside(search, others):
        return True
    for holder in search.holders_of(identity):
        cycle = _cycle_of(search, holder)
        if cycle and not _is_held_from_outside(search, cycle):
            for at in cycle[1:]:
                search.note_holder(holder, at)
            return True
    return False


def _cycle_of(search: Search, start: int) -> list[int]:
    """The objects on ways from an object back to itself, itself first; none if there is no short one."""
    above: dict[int, set[int]] = {}
    seen, level = {start}, [start]
    while level and len(seen) < OBJECTS_MAX:
        following = []
        for at in level:
            below = gc.get_referents(search.objects[at])[:WIDE]
            for thing in filter(search.passable, filter(gc.is_tracked, below)):
                identity = search.keep(thing)
                above.setdefault(identity, set()).add(at)
                if identity not in seen and not search.is_own(identity):
                    seen.add(identity)
                    following.append(identity)
        level = following
    found, level = {start: False}, list(above.get(start, ()))
    while level:
        at = level.pop()
        if not found.get(at):
            found[at] = True
            level += above.get(at, ())
    return list(found) if found[start] else []


def _is_held_from_outside(search: Search, identities: list[int]) -> bool:
    """Whether one of these objects has a reference that none of them is."""
    inside = dict.fromkeys(identities, 0)
    for identity in identities:
        for child in map(id, gc.get_referents(search.objects[identity])):
            if child in inside:
                inside[child] += 1
    probe = search.keep(Probe())
    alone = sys.getrefcount(search.objects[probe])
    return any(sys.getrefcount(search.objects[at]) - alone > inside[at] for at in identities)
