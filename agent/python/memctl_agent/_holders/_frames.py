"""Reads the local variables of every thread's frames.

Guarantees: no frame is changed. From CPython 3.13 on, `f_locals` is a view, and reading it changes nothing. In earlier
versions, reading `f_locals` would attach a dict to the frame, and the dict would keep the variables alive. So in these
versions the slots of the frame are read as words of memory. First this module finds its own variables in one of its own
frames in the same way. If it does not find them, it reads no slots. The native module reads all slots of a frame at
once, so that no other thread runs meanwhile.
Does not read values on a frame's operand stack, values held by C functions, and variables of this package's own
functions.
"""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any, Optional

from memctl_agent._holders import _reading
from memctl_agent._holders._memory import Memory

# CO_NEWLOCALS: the code of a function, and not of a module or a class.
_IS_FUNCTION = 0x2
# Maximum number of slots of one frame.
SLOTS_MAX = 500
# Number of words of our own frame in which its first slot is searched.
_SEARCHED_WORDS = 80

# The folder of the whole package. Objects that its functions hold during a request are not the program's.
_OWN_FOLDER = str(pathlib.Path(__file__).parents[1])
_HAS_VIEWS = sys.version_info >= (3, 13)
# Before 3.11 the slots are in the frame object. From 3.11 on, the fourth word of the frame object points to them.
_IS_INDIRECT = sys.version_info >= (3, 11)
_FRAME_POINTER_AT = 24


def is_own(code: types.CodeType) -> bool:
    """Whether this is code of this package."""
    return code.co_filename.startswith(_OWN_FOLDER)


class Frames:
    """Reads the local variables of frames."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._first_slot = None if _HAS_VIEWS else self._find_first_slot()

    @property
    def can_tell(self) -> bool:
        """Whether local variables of running functions can be read."""
        return _HAS_VIEWS or self._first_slot is not None

    def values(self, frame: types.FrameType) -> list[tuple[str, Any]]:
        """A function's local variables."""
        code = frame.f_code
        # The variables of a module or of a class body are in a dict. The walk finds this dict like any other dict.
        if not code.co_flags & _IS_FUNCTION:
            return []
        if _HAS_VIEWS:
            return list(frame.f_locals.items())[:SLOTS_MAX]
        if self._first_slot is None:
            return []
        names = slot_names(code)[:SLOTS_MAX]
        values = self._native.frame_values(frame, self._first_slot, len(names), _IS_INDIRECT)
        return [(name, value) for name, value in zip(names, values) if value is not None]

    def local_of(self, frame: types.FrameType, value: Any) -> Optional[str]:
        """The name of the local variable whose value, or whose cell, is this object."""
        for name, held in self.values(frame):
            if held is value:
                return _reading.plain(name)
        return None

    def _find_first_slot(self) -> Optional[int]:
        """The number of words before a frame's first slot. A frame with known variables shows it."""
        first, second, frame, memory = object(), object(), sys._getframe(), Memory()
        try:
            wanted = (id(first), id(second), id(frame), id(memory))
            names = slot_names(frame.f_code)
            base = next(iter(memory.words(id(frame) + _FRAME_POINTER_AT, 1)), 0) if _IS_INDIRECT else id(frame)
            words = memory.words(base, _SEARCHED_WORDS)
            for at in range(len(words) - 3):
                if words[at : at + 4] == wanted:
                    slot = at - names.index("first")
                    return slot if slot > 0 and words[slot] == id(self) else None
            return None
        finally:
            memory.close()
            # If a variable of the frame referred to the frame itself, this would be a cycle.
            frame = None


def slot_names(code: types.CodeType) -> list[str]:
    """The names of a frame's slots, in their order."""
    names = list(code.co_varnames)
    if _IS_INDIRECT:
        # A parameter that an inner function uses is in both tuples, but has only one slot.
        return [*names, *(name for name in code.co_cellvars if name not in names), *code.co_freevars]
    return [*names, *code.co_cellvars, *code.co_freevars]
