"""Reads facts about a holder, as types and numbers: its kind, its length, and its bound.

Guarantees: facts are read from the objects themselves, through the built-in types. None of the program's code runs. A
bound can come from four sources: from the type; from the length of a list that was made with all its slots; from an
attribute of the object that owns the container, if its name is in `BOUNDS` and its value is not exceeded; or from code
that compares the container's length with a number and changes the container. If the code removes items while a total is
too large, the bound is one of bytes, and counts as unknown.
Does not guess. An unknown bound is None.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import queue
import sys
import types
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, Optional

from memctl_agent._holders import _code_bound, _reading

# The answer's names of kinds of holders.
CONTAINER, CACHE, CYCLE, FRAME, THREAD = "container", "cache", "cycle", "frame", "thread"
MODULE, GRAPH, CPP, VARIABLE, OBJECT = "module", "graph", "cpp", "variable", "object"

# Modules that are containers of other modules or parameters.
FILLED = ("ModuleDict", "ModuleList", "ParameterDict", "ParameterList")
# Number of objects above a container that are searched for its bound.
ABOVE = 3
# Names of attributes that state the maximum number of items of an object.
BOUNDS = (
    "maxsize",
    "max_size",
    "maxlen",
    "max_len",
    "capacity",
    "max_entries",
    "max_items",
    "buffer_size",
    "cache_size",
    "limit",
    "_Cache__maxsize",
)
# Items of a list that are examined for free slots.
SLOTS_MAX = 200_000
# Bytes of a list's slot: a pointer.
_SLOT_BYTES = 8
# If this many objects must be created before the collector visits the oldest ones, the collector counts as rarely
# running.
RARE = 100_000_000

_lru_type: type = type(functools.lru_cache(maxsize=1)(lambda: None))
_lru_info = getattr(_lru_type, "cache_info", None)
_maxlen: Any = deque.__dict__["maxlen"]
_empty_list_bytes = list.__sizeof__([])


@dataclass
class Facts:
    """Facts about a container: its type's name, number of items, whether it has a bound, and the bound."""

    kind: str
    type_name: str
    length: Optional[int] = None
    is_bounded: Optional[bool] = None
    limit: Optional[int] = None


def of(path: list[Any], at: int) -> Facts:
    """The facts of a container of a path. If an object above the container is a known cache, the facts of the cache."""
    thing = path[at]
    length = _reading.length(thing) if _reading.container(thing) is not None else None
    for place in range(at, max(-1, at - 1 - ABOVE), -1):
        found = _cache(path[place], length)
        if found is not None:
            return found
    word = _reading.container(thing)
    if word is None:
        return Facts(OBJECT, _reading.type_name(type(thing)))
    for above in path[max(0, at - 2) : at]:
        # The container is the object's table of modules or parameters, not the dict of its attributes.
        attributes = _reading.instance_dict(above) if _reading.type_name(type(above)) in FILLED else None
        if attributes is not None and any(thing is dict.get(attributes, name) for name in ("_modules", "_parameters")):
            return Facts(CONTAINER, f"torch.nn.{_reading.type_name(type(above))}", length, False)
    facts = Facts(CONTAINER, _full_name(thing), length, False)
    if type(thing) is tuple or word == "tuple":
        # A tuple cannot grow, but the program may replace it by a longer one.
        facts.is_bounded, facts.limit = None, None
    elif _reading.is_a(thing, deque) and _maxlen.__get__(thing) is not None:
        _bound(facts, _maxlen.__get__(thing))
    elif _is_bounded_by_size(path, at):
        facts.is_bounded = None
    else:
        free = _free_slots(thing)
        facts.length = length - free if length is not None else None
        _own_bound(facts, path, at)
        if not facts.is_bounded:
            _bound_in_code(facts, path, at)
        if not facts.is_bounded and free > 0:
            # `[None] * n` has room for exactly `n` items, and a list that grows by `append` almost always has more.
            is_made_whole = list.__sizeof__(thing) == _empty_list_bytes + _SLOT_BYTES * (length or 0)
            facts.is_bounded, facts.limit = (True, length) if is_made_whole else (None, None)
        if facts.is_bounded is False and _holds_bounded(path, at):
            # The containers inside stop growing. Whether their number does is unknown.
            facts.is_bounded = None
    return facts


def _free_slots(thing: Any) -> int:
    """The number of items of a list that are None: slots that are not yet filled. 0 if it is no list, or too long to be
    examined."""
    if type(thing) is not list or list.__len__(thing) > SLOTS_MAX:
        return 0
    return sum(map(operator.is_, thing, itertools.repeat(None)))


def _holds_bounded(path: list[Any], at: int) -> bool:
    """Whether the next object of a path is a container with a bound."""
    return at + 2 < len(path) and _reading.container(path[at + 1]) is not None and of(path, at + 1).is_bounded is True


def is_cache(thing: Any) -> bool:
    """Whether an object's type is a known cache."""
    return _cache(thing, None) is not None


def _cache(thing: Any, length: Optional[int]) -> Optional[Facts]:
    """The facts of an object whose type is a known cache."""
    cls = type(thing)
    if cls is _lru_type and _lru_info is not None:
        try:
            info = _lru_info(thing)
            facts = Facts(CACHE, "functools.lru_cache", info[3], False)
            return _bound(facts, info[2])
        except Exception:
            return Facts(CACHE, "functools.lru_cache", length)
    if cls is itertools.cycle:
        # The object keeps everything that it has received.
        return Facts(CACHE, "itertools.cycle", length, False)
    if _reading.is_a(thing, queue.Queue):
        maxsize = (_reading.instance_dict(thing) or {}).get("maxsize")
        facts = Facts(CONTAINER, "queue.Queue", length, False)
        return _bound(facts, maxsize if type(maxsize) is int and maxsize > 0 else None)
    for base in _reading.bases(cls):
        module = _reading.table(base).get("__module__")
        if type(module) is str and module.split(".")[0] == "transformers" and _reading.type_name(base) == "Cache":
            return Facts(CACHE, f"transformers.{_reading.type_name(cls)}", None, "Static" in _reading.type_name(cls))
    return None


def _bound(facts: Facts, limit: Any) -> Facts:
    """Sets this limit, which may be None."""
    facts.is_bounded = type(limit) is int
    facts.limit = limit if type(limit) is int else None
    return facts


def _own_bound(facts: Facts, path: list[Any], at: int) -> None:
    """Finds an attribute beside a container that is named like a bound and is not exceeded."""
    for place in range(at, max(-1, at - 1 - ABOVE), -1):
        attributes = _reading.instance_dict(path[place])
        for name in BOUNDS if attributes is not None else ():
            value = dict.get(attributes, name)  # type: ignore[arg-type]
            if type(value) is int and value > 0 and (facts.length or 0) <= value + 1:
                facts.is_bounded, facts.limit = True, value
                return


def _bound_in_code(facts: Facts, path: list[Any], at: int) -> None:
    """Finds a bound in the code of the object or the module that has a container."""
    thing, length = path[at], facts.length or 0
    for above in reversed(path[max(0, at - ABOVE) : at]):
        try:
            namespace = _namespace(above)
            if namespace is not None:
                limit = _code_bound.of_global(namespace, thing, length)
            else:
                limit = _code_bound.of_attribute(above, thing, length)
        except Exception:
            # The code of another version of Python may have another form. Then the bound is unknown.
            return
        if limit is not None:
            facts.is_bounded, facts.limit = True, limit
            return


def _is_bounded_by_size(path: list[Any], at: int) -> bool:
    """Whether the code of the object that has a container removes items while their total is too large."""
    try:
        return any(_code_bound.of_sizes(above, path[at]) for above in reversed(path[max(0, at - ABOVE) : at]))
    except Exception:
        # (As in `_bound_in_code`.)
        return False


def _namespace(thing: Any) -> Optional[dict[str, Any]]:
    """The globals of a module, given as the module or as its dict."""
    if _reading.is_a(thing, types.ModuleType):
        return types.ModuleType.__getattribute__(thing, "__dict__")
    return thing if type(thing) is dict and "__builtins__" in thing and "__name__" in thing else None


def _full_name(thing: Any) -> str:
    """The type of a container, with its module unless it is a built-in type."""
    cls = type(thing)
    if cls is OrderedDict or cls is deque:
        return f"collections.{_reading.type_name(cls)}"
    return _reading.type_name(cls)


def collector(was_enabled: bool) -> str:
    """Whether the collector runs: `on`, `off`, or `rare` if its thresholds are almost never reached."""
    first, second, third = gc.get_threshold()
    if not was_enabled or first <= 0:
        return "off"
    if sys.version_info >= (3, 14):
        return "on" if first < RARE else "rare"
    return "rare" if first * max(1, second) * max(1, third) > RARE else "on"
