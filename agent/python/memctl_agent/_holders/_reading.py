"""Reading the program's objects: their types, names, keys and attributes.

Guarantees: none of the program's code runs. Types are taken with `type`, their tables through the descriptors of `type`
itself, dicts and lists through the methods of the built-in types; classes are compared by identity and never hashed,
since a metaclass may define both. Returned names are plain strings of bounded length.
Refuses: `isinstance`, `getattr`, `repr`, `==` and `len` on any of the program's objects.
"""

from __future__ import annotations

import _thread
import functools
import types
from collections import deque
from itertools import islice
from typing import Any, Optional

# Longer names are truncated: they are for people.
NAME_CHARS_MAX = 80
# Keys that are searched for that of a value.
KEYS_MAX = 200_000
# Py_TPFLAGS_HEAPTYPE: a type created at run time, like every class written in Python.
_HEAP_TYPE = 1 << 9

_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_flags = type.__dict__["__flags__"].__get__
_module_dict = vars(types.ModuleType)["__dict__"].__get__

# Containers and the word for each; a subclass counts as its base.
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
    """The base classes of a class, itself first."""
    return _mro(cls) or ()


def derives(cls: type, wanted: type) -> bool:
    """Whether a class is `wanted` or derives from it."""
    return any(base is wanted for base in bases(cls))


def is_a(thing: Any, wanted: type) -> bool:
    """`isinstance`, by the object's real type only."""
    return derives(type(thing), wanted)


def is_heap_type(cls: type) -> bool:
    """Whether a class was created at run time, and may be freed."""
    return bool(_flags(cls) & _HEAP_TYPE)


def is_atom(thing: Any) -> bool:
    """Whether it can lead to no other object."""
    return id(type(thing)) in _ATOMS


def table(cls: type) -> Any:
    """A class's own attributes, read-only."""
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
    """A module's value for a name that every module defines early, if it is a string."""
    try:
        for key, value in islice(dict.items(namespace), 16):
            if type(key) is str and key == name:
                return value if type(value) is str else None
    except RuntimeError:
        # Another thread inserted an item.
        pass
    return None


def container(thing: Any) -> Optional[str]:
    """`list`, `dict`, `tuple`, `set` or `deque`, if it is one."""
    for base in bases(type(thing)):
        for known, word in CONTAINERS:
            if base is known:
                return word
    return None


def length(thing: Any) -> int:
    """The items of a container, by the built-in type's own count."""
    for known, _ in CONTAINERS:
        if is_a(thing, known):
            return known.__len__(thing)  # type: ignore[attr-defined]
    return 0


def key_of(mapping: Any, value: Any) -> Optional[str]:
    """The key of a value in a dict, in words; none if it is a key itself or the dict changes meanwhile."""
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
    """A key for a sentence. A key that is neither text nor a number is described by its type."""
    if type(key) is int or type(key) is bool:
        return str(key) if -(2**63) < key < 2**63 else "a large number"
    return plain(key) or f"a {type_name(type(key))}"


def instance_dict(thing: Any) -> Optional[dict[str, Any]]:
    """An object's attributes, if they are in an ordinary dict."""
    cls = type(thing)
    if derives(cls, _thread._local):
        # Reading it creates one for this thread, and calls the program's `__init__` for that.
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
    """The attribute or slot under which an object has a value."""
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
                    # An empty slot, or one of another object's layout.
                    continue
                if held is value:
                    return plain(name)
    return None
