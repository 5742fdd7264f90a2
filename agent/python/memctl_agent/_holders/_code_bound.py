"""Reads the bound of a container from the code that fills it. A bound is a comparison of the container's length with a
number.

Guarantees: a bound is reported under three conditions. A method of the object that has the container, or a function of
the module that has it, compares `len` of the container with an integer. The outcome decides whether that function, or
a method that it calls, removes, replaces or adds items: a comparison that only prints a warning is no bound. The
length is not above the bound, because a comparison that has no effect is no bound. None of the program's code runs.
Only code objects, attributes and globals are read.
Follows calls one level deep, and does not read functions with more than `CODE_BYTES_MAX` bytes of code.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any, Optional

from memctl_agent._holders import _branches, _reading

# Maximum number of functions that are read for one container, and of bytes of each.
FUNCTIONS_MAX = 16
CODE_BYTES_MAX = 4_000
# Maximum number of names of a module or a class that are looked at.
NAMES_MAX = 2_000
# Methods that remove or add items.
CHANGES = frozenset(
    ("append", "add", "appendleft", "insert", "popitem", "pop", "popleft", "clear", "remove", "discard", "move_to_end")
)
REMOVALS = frozenset(("popitem", "pop", "popleft", "remove", "discard"))
# Instructions before a comparison that may load what is compared, at most: `self.used + n > self.max_bytes`.
COMPARED_SPAN = 8
# Instructions between the load of a container and the change of one of its items, at most.
STORE_SPAN = 8
# Instructions that store, replace or delete an item.
ITEM_CHANGES = frozenset(("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"))
# Instructions without a value of their own, between those that are compared.
_BLANK = frozenset(("CACHE", "PRECALL", "PUSH_NULL", "NOP", "EXTENDED_ARG", "NOT_TAKEN", "RESUME"))
_LOCALS = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF")


def of_attribute(owner: Any, container: Any, length: int) -> Optional[int]:
    """The bound of a container that is an attribute of `owner`."""
    attributes = _reading.instance_dict(owner)
    if attributes is None:
        return None
    name = _name_in(attributes, container)
    if name is None:
        return None
    found = (_limits(code, function, name, attributes) for code, function in _methods(type(owner), name))
    return _least(found, length)


def of_global(namespace: dict[str, Any], container: Any, length: int) -> Optional[int]:
    """The bound of a container that is a global variable of a module."""
    name = _name_in(namespace, container)
    if name is None:
        return None
    functions = (value for value in islice(dict.values(namespace), NAMES_MAX) if type(value) is types.FunctionType)
    own = (one for one in functions if one.__globals__ is namespace and _may_limit(one.__code__, name))
    found = (_limits(one.__code__, one, name, None) for one in islice(own, FUNCTIONS_MAX))
    return _least(found, length)


def of_sizes(owner: Any, container: Any) -> bool:
    """Whether a method of `owner`, which has the container as an attribute, removes items while a total is too large,
    and corrects the total: a bound in bytes, whose number of items nothing states."""
    attributes = _reading.instance_dict(owner)
    if attributes is None:
        return False
    name = _name_in(attributes, container)
    if name is None:
        return False
    methods = (value for base in _reading.bases(type(owner)) for value in islice(_table(base), NAMES_MAX))
    removing = (one for one in methods if type(one) is types.FunctionType and _may_evict(one.__code__, name))
    return any(_evicts(one, name) for one in islice(removing, FUNCTIONS_MAX))


def _name_in(namespace: dict[str, Any], container: Any) -> Optional[str]:
    """The name under which a namespace has a container."""
    name = next((key for key, value in islice(dict.items(namespace), NAMES_MAX) if value is container), None)
    return name if type(name) is str else None


def _table(base: type) -> Iterator[Any]:
    return iter(_reading.table(base).values())


def _may_evict(code: types.CodeType, name: str) -> bool:
    return name in code.co_names and len(code.co_code) <= CODE_BYTES_MAX


def _evicts(function: types.FunctionType, name: str) -> bool:
    steps = [one for one in dis.get_instructions(function.__code__) if one.opname not in _BLANK]
    branches = _branches.Branches(steps)
    for at, one in enumerate(steps):
        if one.opname != "COMPARE_OP":
            continue
        compared = {step.argval for step in steps[max(0, at - COMPARED_SPAN) : at] if step.opname == "LOAD_ATTR"}
        places = branches.decided(at) or range(0)
        totals = any(steps[place].opname == "STORE_ATTR" and steps[place].argval in compared for place in places)
        if totals and any(_removes(place, steps, name) for place in places):
            return True
    return False


def _removes(at: int, steps: list[dis.Instruction], name: str) -> bool:
    """Whether an instruction removes an item of the container."""
    one = steps[at]
    if one.opname == "DELETE_SUBSCR":
        return any(_is_container(step, steps, at - back, name) for back, step in _before(steps, at))
    return (
        one.opname in ("LOAD_ATTR", "LOAD_METHOD")
        and one.argval in REMOVALS
        and at > 0
        and _is_container(steps[at - 1], steps, at - 1, name)
    )


def _least(found: Iterator[Iterator[int]], length: int) -> Optional[int]:
    return min((limit for limits in found for limit in limits if limit > 0 and length <= limit + 1), default=None)


def _methods(cls: type, name: str) -> Iterator[tuple[types.CodeType, types.FunctionType]]:
    """The methods of a class, its bases and its properties whose code names an attribute and `len`."""

    def functions() -> Iterator[types.FunctionType]:
        for base in _reading.bases(cls):
            for value in islice(_reading.table(base).values(), NAMES_MAX):
                one = value.fget if type(value) is property else value
                if type(one) is types.FunctionType and _may_limit(one.__code__, name):
                    yield one

    return ((one.__code__, one) for one in islice(functions(), FUNCTIONS_MAX))


def _may_limit(code: types.CodeType, name: str) -> bool:
    return name in code.co_names and "len" in code.co_names and len(code.co_code) <= CODE_BYTES_MAX


def _limits(
    code: types.CodeType, function: types.FunctionType, name: str, attributes: Optional[dict[str, Any]]
) -> Iterator[int]:
    """The numbers with which a function compares the length of `name`, if the outcome decides over its items."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in _BLANK]
    branches = _branches.Branches(steps)

    def decides(comparison: int) -> bool:
        places = branches.decided(comparison)
        everything = range(len(steps))
        return any(_changes(place, steps, name, function) for place in (everything if places is None else places))

    for at, one in enumerate(steps):
        if one.opname != "LOAD_GLOBAL" or one.argval != "len":
            continue
        end = _length_of(steps, at + 1, name, attributes is None)
        if end is None:
            continue
        number, after = _number(steps, end, function, attributes)
        if number is not None and after < len(steps) and steps[after].opname == "COMPARE_OP":
            if decides(after):
                yield number
        elif end < len(steps) and steps[end].opname == "COMPARE_OP":
            # The number comes first: `500 < len(self.items)`.
            for begin in (at - 1, at - 2):
                number, after = _number(steps, begin, function, attributes) if begin >= 0 else (None, 0)
                if number is not None and after == at:
                    if decides(end):
                        yield number
                    break


def _changes(at: int, steps: list[dis.Instruction], name: str, function: types.FunctionType) -> bool:
    """Whether an instruction removes, replaces or adds items of the container, or calls something of the program that
    does."""
    one = steps[at]
    if one.opname in ITEM_CHANGES:
        return any(_is_container(step, steps, at - back, name) for back, step in _before(steps, at))
    if one.opname in ("STORE_ATTR", "STORE_GLOBAL"):
        return one.argval == name
    if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval in CHANGES:
        return at > 0 and _is_container(steps[at - 1], steps, at - 1, name)
    return one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL") and _callee_changes(one.argval, name, function)


def _before(steps: list[dis.Instruction], at: int) -> Iterator[tuple[int, dis.Instruction]]:
    """The instructions before a place that may load the container whose item is stored or deleted there."""
    return ((back, steps[at - back]) for back in range(1, min(STORE_SPAN, at) + 1))


def _is_container(one: dis.Instruction, steps: list[dis.Instruction], at: int, name: str) -> bool:
    """Whether an instruction loads the container: by its name, or from a local variable that may be the same."""
    if one.opname in ("LOAD_GLOBAL", "LOAD_ATTR") and one.argval == name:
        return True
    after = steps[at + 1].opname if at + 1 < len(steps) else ""
    reads_on = after == "LOAD_ATTR" and steps[at + 1].argval not in CHANGES
    return one.opname in _LOCALS and one.argval != "self" and not reads_on


def _callee_changes(called: str, name: str, function: types.FunctionType) -> bool:
    """Whether a method of the function's class, or a function of its module, changes items of the container itself."""
    cls: Any = dict.get(function.__globals__, function.__qualname__.split(".")[0])
    found = _reading.table(cls).get(called) if _reading.is_a(cls, type) else None
    found = found if found is not None else dict.get(function.__globals__, called)
    if type(found) is not types.FunctionType or found is function:
        return False
    code = found.__code__
    if name not in code.co_names or len(code.co_code) > CODE_BYTES_MAX:
        return False
    changes_items = any(one.opname in ITEM_CHANGES for one in dis.get_instructions(code))
    return changes_items or not CHANGES.isdisjoint(code.co_names)


def _length_of(steps: list[dis.Instruction], at: int, name: str, is_global: bool) -> Optional[int]:
    """The place after `len(self.name)` or `len(name)`, whose argument begins at `at`."""
    if not is_global:
        if at >= len(steps) or steps[at].opname not in _LOCALS:
            return None
        at += 1
    wanted = "LOAD_GLOBAL" if is_global else "LOAD_ATTR"
    if at + 1 >= len(steps) or steps[at].opname != wanted or steps[at].argval != name:
        return None
    return at + 2 if steps[at + 1].opname in ("CALL", "CALL_FUNCTION") else None


def _number(
    steps: list[dis.Instruction], at: int, function: types.FunctionType, attributes: Optional[dict[str, Any]]
) -> tuple[Optional[int], int]:
    """The integer loaded at a place (a constant, a global or an attribute of `self`), and the place after it."""
    if at >= len(steps):
        return None, at
    one, value = steps[at], None
    if one.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
        value = one.argval
    elif one.opname == "LOAD_GLOBAL":
        value = dict.get(function.__globals__, one.argval)
    elif one.opname in _LOCALS and attributes is not None and at + 1 < len(steps):
        at += 1
        if steps[at].opname == "LOAD_ATTR":
            value = dict.get(attributes, steps[at].argval)
            if value is None:
                value = _of_class(function, steps[at].argval)
    return (value if type(value) is int else None), at + 1


def _of_class(function: types.FunctionType, name: str) -> Any:
    """A class's attribute of that name, found by the function's qualified name in its module."""
    cls: Any = dict.get(function.__globals__, function.__qualname__.split(".")[0])
    return _reading.table(cls).get(name) if _reading.is_a(cls, type) else None
