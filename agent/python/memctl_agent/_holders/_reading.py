"""Reads the program's objects: their types, names, keys and attributes.

Guarantees: none of the program's code runs. Types are read with `type`, and their tables with the descriptors of `type`
itself. Dicts and lists are read with the methods of the built-in types. Classes are compared by identity and never
hashed, because a metaclass may define equality and hash. Returned names are plain strings of bounded length.
Does not use `isinstance`, `getattr`, `repr`, `==` or `len` on any of the program's objects.
"""

from __future__ import annotations

import _thread
import functools
import types
from collections import deque
from itertools import islice
from typing import Any, Optional

# Longer names are truncated, because users read them.
NAME_CHARS_MAX = 80
# Maximum number of items of a dict that are searched for the key of a value.
KEYS_MAX = 200_000
# Py_TPFLAGS_HEAPTYPE: a type that was created at run time, like every class written in Python.
_HEAP_TYPE = 1 << 9

_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_flags = type.__dict__["__flags__"].__get__
_module_dict = vars(types.ModuleType)["__dict__"].__get__

# Containers and the word for each. A subclass counts as its base.
CONTAINERS: tuple[tuple[type, str], ...] = (
    (dict, "dict"),
    (list, "list"),
    (tuple, "tuple"),
    (set, "set"),
    (frozenset, "set"),
    (deque, "deque"),
)
# Types whose objects never lead to a tensor, by identity.
_PLAIN = (str, int, float, complex, bool, bytes, bytearray, type(None), range, slice, type(Ellipsis), types.CodeType)
_ATOMS = frozenset(map(id, _PLAIN))


def bases(cls: type) -> tuple[type, ...]:
    """The base classes of a class. The class itself is the first."""
    return _mro(cls) or ()


def derives(cls: type, wanted: type) -> bool:
    """Whether a class is `wanted` or derives from it."""
    return any(base is wanted for base in bases(cls))


def is_a(thing: Any, wanted: type) -> bool:
    """Like `isinstance`, but only by the object's real type."""
    return derives(type(thing), wanted)


def is_heap_type(cls: type) -> bool:
    """Whether a class was created at run time. Such a class may be freed."""
    return bool(_flags(cls) & _HEAP_TYPE)


def is_atom(thing: Any) -> bool:
    """Whether an object has no references that can lead to a tensor."""
    return id(type(thing)) in _ATOMS


def table(cls: type) -> Any:
    """A class's own attributes, as a read-only mapping."""
    return _namespace(cls)


def plain(text: Any) -> Optional[str]:
    """A string as an exact `str` for a sentence: short, on one line, without characters that would end its quotes."""
    if type(text) is str and len(text) <= NAME_CHARS_MAX and text.isprintable() and "`" not in text:
        return text
    if not is_a(text, str):
        return None
    exact = str.__str__(text)[: NAME_CHARS_MAX + 1]
    exact = "".join(char if char.isprintable() and char != "`" else "?" for char in exact)
    return exact if len(exact) <= NAME_CHARS_MAX else exact[: NAME_CHARS_MAX - 1] + "…"


def type_name(cls: type) -> str:
    """A class's name without the enclosing function."""
    return _short(_qualname(cls)) or "object"


def function_name(function: types.FunctionType) -> str:
    """A function's name without the enclosing function."""
    return _short(function.__qualname__) or "function"


def code_name(code: types.CodeType) -> str:
    """The name of the function a code object belongs to."""
    return _short(getattr(code, "co_qualname", code.co_name)) or "function"


def _short(qualname: Any) -> Optional[str]:
    exact = str.__str__(qualname) if is_a(qualname, str) else ""
    return plain(exact.rsplit("<locals>.", 1)[-1])


def module_dict(module: Any) -> Optional[dict[str, Any]]:
    """A module's globals, even if its type defines `__dict__` differently."""
    is_one = type(module) is types.ModuleType or is_a(module, types.ModuleType)
    found = _module_dict(module) if is_one else None
    return found if type(found) is dict else None


def said_by(namespace: dict[str, Any], name: str) -> Optional[str]:
    """The value of a name among the first items of a module's globals, if it is a string."""
    try:
        for key, value in islice(dict.items(namespace), 16):
            if type(key) is str and key == name:
                return value if type(value) is str else None
    except RuntimeError:
        # Another thread inserted an item.
        pass
    return None


def container(thing: Any) -> Optional[str]:
    """The word for a container (`list`, `dict`, `tuple`, `set` or `deque`); None for another object."""
    for base in bases(type(thing)):
        for known, word in CONTAINERS:
            if base is known:
                return word
    return None


def length(thing: Any) -> int:
    """The number of items of a container, from the built-in type's own method."""
    for known, _ in CONTAINERS:
        if is_a(thing, known):
            return known.__len__(thing)  # type: ignore[attr-defined]
    return 0


def key_of(mapping: Any, value: Any) -> Optional[str]:
    """The key of a value in a dict, in words. `None` if the dict has no such value or changes meanwhile."""
    try:
        for number, (key, held) in enumerate(dict.items(mapping)):
            if held is value:
                return key_words(key)
            if number >= KEYS_MAX:
                break
    except RuntimeError:
        # Another thread inserted an item.
        pass
    return None


def key_words(key: Any) -> str:
    """The text of a key for a sentence. A key that is neither text nor a number is described by its type."""
    if type(key) is int or type(key) is bool:
        return str(key) if -(2**63) < key < 2**63 else "a large number"
    return plain(key) or f"a {type_name(type(key))}"


def instance_dict(thing: Any) -> Optional[dict[str, Any]]:
    """An object's attributes, if they are in an ordinary dict."""
    cls = type(thing)
    if derives(cls, _thread._local):
        # Reading the attributes would create a dict for this thread and call the program's `__init__`.
        return None
    for base in bases(cls):
        found = table(base).get("__dict__")
        if found is not None:
            usual = _flags(base) & _HEAP_TYPE or base is BaseException or base is functools.partial
            if type(found) is not types.GetSetDescriptorType or not usual:
                return None
            attributes = found.__get__(thing)
            return attributes if is_a(attributes, dict) else None
    return None


def attribute_of(thing: Any, value: Any) -> Optional[str]:
    """The name of the attribute or slot of an object that has this value."""
    attributes = instance_dict(thing)
    if attributes is not None:
        name = key_of(attributes, value)
        if name is not None:
            return name
    for base in bases(type(thing)):
        for name, member in table(base).items():
            if type(member) is types.MemberDescriptorType:
                try:
                    held = member.__get__(thing)
                except (AttributeError, TypeError):
                    # The slot is empty, or it belongs to the layout of another type.
                    continue
                if held is value:
                    return plain(name)
    return None
