"""The roots of chains: globals of modules, and variables of running functions and of suspended generators. Each root
has names by which it is found again.

Guarantees: between two slices only names, numbers and weak references to generators are kept. The started module and
the modules next to it come first, then the program's other modules, then installed ones.
This package's own modules and functions are not roots.
"""

from __future__ import annotations

import gc
import os
import sys
import types
import weakref
from dataclasses import dataclass
from itertools import islice
from typing import Any, Optional

from memctl_agent._holders import _reading
from memctl_agent._holders._frames import Frames, is_own

# Maximum number of frames that are read for one thread, and of variables.
FRAMES_MAX = 400
VARIABLES_MAX = 4_000
# Maximum number of threads that are read.
THREADS_MAX = 256

# Parts of paths of files that are not the program's own.
_INSTALLED = ("site-packages", "dist-packages", f"python{sys.version_info[0]}.{sys.version_info[1]}", "<frozen")

# The nearness of a module: next to the started program, elsewhere in the program, or installed.
BESIDE, OWN, INSTALLED = 0, 1, 2


@dataclass(frozen=True)
class Root:
    """The root of a chain. Its kind is `module`, with the module's name, or `local`, with the names of the variable and
    its function. For threads other than the main one it also has the thread with its current position. `generator` is
    the suspended generator or coroutine that has the variable."""

    kind: str
    name: str
    owner: str = ""
    thread: str = ""
    ident: int = 0
    frame: int = 0
    slot: str = ""
    generator: Optional[weakref.ref[Any]] = None


# Endings of names of package metadata, which mark a folder of installed packages; and the maximum number of entries of
# `sys.path` that are checked.
_INSTALLED_ENDS = (".dist-info", ".egg-info")
FOLDERS_MAX = 32


def installed_folders() -> tuple[str, ...]:
    """The folders of installed packages, except the usual ones. A folder that contains package metadata is one.

    This function lists folders, so it runs outside of slices.
    """
    found = []
    for folder in list(sys.path)[:FOLDERS_MAX]:
        if type(folder) is not str or not folder or any(place in folder for place in _INSTALLED):
            continue
        try:
            if any(name.endswith(_INSTALLED_ENDS) for name in os.listdir(folder)):
                found.append(folder.rstrip(os.sep) + os.sep)
        except OSError:
            continue
    return tuple(found)


class Places:
    """Determines the nearness of modules by their files. `installed` has folders of installed packages."""

    def __init__(self, installed: tuple[str, ...]) -> None:
        self._installed = installed
        main = _reading.module_dict(sys.modules.get("__main__")) or {}
        file = _reading.said_by(main, "__file__")
        # (A notebook has no file. Then modules in the working directory count as next to the program.)
        self._beside = os.path.dirname(os.path.abspath(file)) + os.sep if file else os.getcwd() + os.sep

        # Results by folder, because most modules share a folder with many others.
        self._known: dict[str, int] = {}
        self._packages: dict[str, bool] = {}

    def is_of_installed(self, key: str) -> bool:
        """Whether a module belongs to an installed package. The file of the top-level package decides."""
        top, dot, _ = key.partition(".")
        if not dot:
            return False
        known = self._packages.get(top)
        if known is None:
            namespace = _reading.module_dict(dict.get(sys.modules, top))
            # (A package without a file may consist of several folders.)
            has_file = namespace is not None and type(dict.get(namespace, "__file__")) is str
            known = self._packages[top] = has_file and self.nearness(namespace or {}) == INSTALLED
        return known

    def nearness(self, namespace: dict[str, Any]) -> int:
        """The nearness of a module."""
        file = dict.get(namespace, "__file__")
        if type(file) is not str:
            return INSTALLED
        folder = file[: file.rfind(os.sep) + 1] or file
        known = self._known.get(folder)
        if known is None:
            known = self._known[folder] = self._of_file(file)
        return known

    def _of_file(self, file: str) -> int:
        if any(place in file for place in _INSTALLED):
            return INSTALLED
        if file.startswith(self._beside):
            return BESIDE
        return INSTALLED if file.startswith(self._installed) else OWN


class Roots:
    """The roots of a walk, by index."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._known: dict[int, Root] = {}

    def put(self, number: int, root: Root) -> None:
        """Records a root under its index."""
        self._known[number] = root

    def of(self, number: int) -> Optional[Root]:
        """The root with an index."""
        return self._known.get(number)

    def numbers(self) -> list[int]:
        """All indices."""
        return list(self._known)

    def objects(self, numbers: list[int]) -> list[tuple[int, Any]]:
        """The objects that these roots have now. A variable whose function has ended has none."""
        found: list[tuple[int, Any]] = []
        variables: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for number in numbers:
            root = self._known[number]
            if root.kind == "module" and not root.frame:
                namespace = _reading.module_dict(dict.get(sys.modules, root.slot))
                if namespace is not None:
                    found.append((number, namespace))
            elif root.generator is not None:
                frame = frame_of(root.generator())
                if frame is not None:
                    found += self._values(frame, [(root.slot, number)])
                    frame = None
            else:
                variables.setdefault((root.ident, root.frame), []).append((root.slot, number))
        threads = sys._current_frames() if variables else {}
        at: Optional[types.FrameType] = None
        try:
            for (ident, identity), wanted in variables.items():
                at = threads.get(ident)
                while at is not None and id(at) != identity:
                    at = at.f_back
                if at is not None:
                    found += self._values(at, wanted)
        finally:
            # If a variable referred to this function's own frame, this would be a cycle.
            threads.clear()
            at = None
        return found

    def _values(self, frame: types.FrameType, wanted: list[tuple[str, int]]) -> list[tuple[int, Any]]:
        values = dict(self._frames.values(frame))
        found = [(number, values[slot]) for slot, number in wanted if slot in values]
        return found + [(number, frame.f_globals) for slot, number in wanted if not slot]


def main_names() -> list[str]:
    """The names of the started module. In a spawned process it has two names."""
    namespace = _reading.module_dict(dict.get(sys.modules, "__main__"))
    name = _reading.said_by(namespace, "__name__") if namespace is not None else None
    if name is None or _reading.module_dict(dict.get(sys.modules, name)) is not namespace:
        return ["__main__"]
    return ["__main__", name] if name != "__main__" else ["__main__"]


def variables(
    frames: Frames, ident: int, at: Optional[types.FrameType], is_main: bool, known: set[int], of_modules: set[int]
) -> list[tuple[Root, Any]]:
    """The variables of the functions that a thread runs, the outermost function first, and globals of functions that
    belong to no module. `at` is the innermost frame. `of_modules` has the ids of known module globals."""
    found: list[tuple[Root, Any]] = []
    thread = "" if is_main or at is None else _thread_words(ident, at)
    try:
        count, spaces = 0, None
        while at is not None and count < FRAMES_MAX:
            count += 1
            if not is_own(at.f_code):
                function = _reading.code_name(at.f_code)
                for slot, value in reversed(frames.values(at)):
                    if not gc.is_tracked(value):
                        continue
                    name = _reading.plain(slot) or "a variable"
                    found.append((Root("local", name, function, thread, ident, id(at), slot), value))
                spaces = at.f_globals
                if id(spaces) not in known and id(spaces) not in of_modules and type(spaces) is dict:
                    if _is_of_module(spaces):
                        of_modules.add(id(spaces))
                    else:
                        name = _reading.plain(_reading.said_by(spaces, "__name__") or "?") or "?"
                        found.append((Root("module", name, "", thread, ident, id(at)), spaces))
            at = at.f_back
    finally:
        at = spaces = None
    return found[:VARIABLES_MAX][::-1]


# The name of the attribute that has the frame, for each kind of generator.
_FRAME_NAMES = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}


def frame_of(generator: Any) -> Optional[types.FrameType]:
    """The frame of a generator or coroutine that has not ended. If it has not begun, the frame holds its arguments."""
    name = _FRAME_NAMES.get(type(generator))
    return getattr(generator, name) if name is not None else None


def suspended(frames: Frames, generator: Any) -> list[tuple[Root, Any]]:
    """The variables of a suspended generator or coroutine. The variables of a running one are among those of its
    thread."""
    frame = frame_of(generator)
    if frame is None or frame.f_back is not None or is_own(frame.f_code):
        return []
    function, own, found = _reading.code_name(frame.f_code), weakref.ref(generator), []
    for slot, value in frames.values(frame):
        if gc.is_tracked(value):
            found.append(
                (Root("local", _reading.plain(slot) or "a variable", function, slot=slot, generator=own), value)
            )
    return found[:VARIABLES_MAX]


def _is_of_module(namespace: dict[str, Any]) -> bool:
    """Whether these are the globals of a module. Such globals are a root already."""
    name = _reading.said_by(namespace, "__name__")
    return name is not None and _reading.module_dict(dict.get(sys.modules, name)) is namespace


def threads() -> list[int]:
    """The running threads, the main one first."""
    import threading

    main = threading.main_thread().ident
    return sorted(islice(sys._current_frames(), THREADS_MAX), key=lambda ident: ident != main)


def main_thread() -> int:
    """The main thread."""
    import threading

    return threading.main_thread().ident or 0


def _thread_words(ident: int, frame: types.FrameType) -> str:
    """A thread's name and position, such as `thread `Thread-5 (generate)` in `wait` (threading.py:327)`."""
    import threading

    thread = dict.get(threading._active, ident)  # type: ignore[attr-defined]
    attributes = _reading.instance_dict(thread) if thread is not None else None
    name = _reading.plain(attributes.get("_name")) if attributes is not None else None
    while os.path.basename(frame.f_code.co_filename) == "threading.py" and frame.f_back is not None:
        # The frame belongs to a lock or a condition. The position of its caller is more informative.
        frame = frame.f_back
    where = f"`{_reading.code_name(frame.f_code)}` ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"
    return f"thread `{name}` in {where}" if name else f"a thread in {where}"
