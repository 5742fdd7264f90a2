"""What running functions hold: the local variables of every thread's frames, by identity.

Guarantees: no frame is changed. From CPython 3.13 on `f_locals` is a view; before, reading it would put a dict beside
the frame that keeps its variables alive, so the slots are read as words of memory instead, once this module has found
its own variables in a frame of its own in the same way. Words of other threads' frames are compared with identities and
nothing else; those of this thread's cannot change meanwhile and are taken as the objects that they are.
Refuses: values that lie on a frame's stack of operands, what C functions hold, and this package's own functions.
"""

from __future__ import annotations

import ctypes
import gc
import pathlib
import sys
import types
from typing import Any, Optional

from memctl_agent._holders import _reading
from memctl_agent._holders._memory import Memory

# Frames of all threads that are looked at.
FRAMES_MAX = 2_000
# Frames of the thread that asks whose values are looked below.
FRAMES_HERE_MAX = 100
# CO_NEWLOCALS: the code of a function, and not of a module or a class.
_IS_FUNCTION = 0x2
# Slots of one frame.
SLOTS_MAX = 500
# Where to look for the first slot in a frame of our own, in words.
_SEARCHED_WORDS = 80

# The whole package: what its functions hold while they ask is not the program's doing.
_OWN_FOLDER = str(pathlib.Path(__file__).parents[1])
_HAS_VIEWS = sys.version_info >= (3, 13)
# Before 3.11 the slots lie in the frame object, since then in what its fourth word points to.
_IS_INDIRECT = sys.version_info >= (3, 11)
_FRAME_POINTER_AT = 24


def is_own(code: types.CodeType) -> bool:
    """Whether this is code of the search, or of who asked for it."""
    return code.co_filename.startswith(_OWN_FOLDER)


class Frames:
    """The local variables of frames, and of all that run now."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._first_slot = None if _HAS_VIEWS else self._find_first_slot()
        # Identity of a local's value to name of the variable and of the function.
        self.running: dict[int, tuple[str, str]] = {}
        # Identity of the globals of functions that run to the name they say.
        self.globals: dict[int, str] = {}
        self.objects: dict[int, dict[str, Any]] = {}
        # Identities of the frames that run.
        self.alive: set[int] = set()

    @property
    def can_tell(self) -> bool:
        """Whether local variables of running functions are seen."""
        return _HAS_VIEWS or self._first_slot is not None

    def look(self) -> None:
        """Notes the local variables of every thread."""
        at: Optional[types.FrameType] = None
        frames = sys._current_frames()
        try:
            while frames:
                at = frames.popitem()[1]
                while at is not None and len(self.alive) < FRAMES_MAX:
                    self.alive.add(id(at))
                    if not is_own(at.f_code):
                        self._note(at)
                    at = at.f_back
        finally:
            # This function's own frame was among them: a variable that had it would keep it, and all that called it.
            frames.clear()
            at = None

    def _note(self, frame: types.FrameType) -> None:
        found = frame.f_globals
        if type(found) is dict and id(found) not in self.globals:
            self.globals[id(found)] = _reading.said_by(found, "__name__") or "?"
            self.objects[id(found)] = found
        function = _reading.code_name(frame.f_code)
        for name, value in self.locals_of(frame):
            self.running.setdefault(value, (_reading.plain(name) or "a variable", function))

    def locals_of(self, frame: types.FrameType) -> list[tuple[str, int]]:
        """Names of a function's local variables and the identities of their values."""
        code = frame.f_code
        # The variables of a module or of a class body are in a dict that is found like any other.
        if not code.co_flags & _IS_FUNCTION:
            return []
        if _HAS_VIEWS:
            return [(name, id(value)) for name, value in frame.f_locals.items()]
        if self._first_slot is None:
            return []
        names = slot_names(code)[:SLOTS_MAX]
        words = self._memory.words(self._base(frame) + 8 * self._first_slot, len(names))
        return [(name, word) for name, word in zip(names, words) if word]

    def here(self) -> list[tuple[str, str, Any]]:
        """Variables of this thread's functions, outermost first: name, function and value.

        The slots of these frames cannot change while one of the functions that they called runs, and hold what is in
        them alive; so their words are objects for certain. Of other threads' frames that could not be said.
        """
        found: list[tuple[str, str, Any]] = []
        at: Optional[types.FrameType] = sys._getframe()
        try:
            for _ in range(FRAMES_HERE_MAX):
                if at is None:
                    break
                if not is_own(at.f_code) and at.f_code.co_flags & _IS_FUNCTION:
                    function = _reading.code_name(at.f_code)
                    values = self._values(at)
                    found += [(_reading.plain(name) or "?", function, value) for name, value in reversed(values)]
                at = at.f_back
        finally:
            # As in `look`.
            at = None
        return found[::-1]

    def _values(self, frame: types.FrameType) -> list[tuple[str, Any]]:
        if _HAS_VIEWS:
            return list(frame.f_locals.items())
        if not _IS_INDIRECT:
            names = {identity: name for name, identity in self.locals_of(frame)}
            return [(names[id(value)], value) for value in gc.get_referents(frame) if id(value) in names]
        return [(name, ctypes.cast(word, ctypes.py_object).value) for name, word in self.locals_of(frame)]

    def local_of(self, frame: types.FrameType, value: Any) -> Optional[str]:
        """The variable that has a value, or the cell with it."""
        for name, identity in self.locals_of(frame):
            if identity == id(value):
                return _reading.plain(name)
        return None

    def _base(self, frame: types.FrameType) -> int:
        if not _IS_INDIRECT:
            return id(frame)
        return next(iter(self._memory.words(id(frame) + _FRAME_POINTER_AT, 1)), 0)

    def _find_first_slot(self) -> Optional[int]:
        """How many words behind the start of a frame its first slot is, from a frame whose variables are known."""
        first, second, frame = object(), object(), sys._getframe()
        try:
            wanted = (id(first), id(second), id(frame))
            names = slot_names(frame.f_code)
            words = self._memory.words(self._base(frame), _SEARCHED_WORDS)
            for at in range(len(words) - 2):
                if words[at : at + 3] == wanted:
                    slot = at - names.index("first")
                    return slot if slot > 0 and words[slot] == id(self) else None
            return None
        finally:
            # A frame that has itself in a variable is a cycle.
            frame = None


def slot_names(code: types.CodeType) -> list[str]:
    """The names of a frame's slots in their order."""
    names = list(code.co_varnames)
    if _IS_INDIRECT:
        # A parameter that an inner function uses has one slot.
        return [*names, *(name for name in code.co_cellvars if name not in names), *code.co_freevars]
    return [*names, *code.co_cellvars, *code.co_freevars]
