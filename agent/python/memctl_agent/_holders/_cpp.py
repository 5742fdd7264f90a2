"""Tensors that only C++ holds, and whether autocast's cache is the holder.

Where C++ counts as one reference of a tensor's Python object, in addition to Python's, the counts are exact: one
reference, a tensor that C++ refers to, and memory that no other tensor shares. A test on one of our own tensors
determines whether torch counts like that. Autocast keeps a copy of each weight that it has converted until the
outermost autocast is left, and the copy's graph keeps the weight. Only the thread itself knows whether it is on: the
main thread is queried between two of its instructions, in the way signals are handled.
Guarantees: no tensor is changed or kept. Refuses: to report other threads' autocast.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
import time
from typing import Any, ClassVar, Optional

from memctl_agent._holders import _reading
from memctl_agent._holders._roots import main_thread

# Autocast must be on at this many checks, over this many seconds.
LOOKS_MIN = 5
LOOKED_S_MIN = 0.3
# Time limit of the thread that tests how torch counts.
_WAIT_S = 0.02
# The tensor itself and the reader of its storage.
_ALONE_ON_STORAGE = 2


class Counts:
    """How torch counts references, determined once per process."""

    is_known = False
    are_of_cpp = False

    @classmethod
    def find(cls, torch: Any) -> bool:
        """Whether C++ counts as a separate reference."""
        if not cls.is_known:
            cls.is_known = True
            done = _thread.allocate_lock()
            done.acquire()

            def look() -> None:
                try:
                    cls.are_of_cpp = _counts_cpp(torch)
                except Exception:
                    cls.are_of_cpp = False
                finally:
                    done.release()

            # In a separate thread: the program's modes, hooks and profilers belong to its own threads.
            _thread.start_new_thread(look, ())
            if not done.acquire(timeout=_WAIT_S):
                cls.are_of_cpp = False
        return cls.are_of_cpp


def _counts_cpp(torch: Any) -> bool:
    leaf = torch.ones(1, dtype=torch.float32, device="cpu", requires_grad=True)
    before = sys.getrefcount(leaf), leaf._use_count(), _shares(torch, leaf)
    kept = leaf.exp() * leaf
    after = sys.getrefcount(leaf), leaf._use_count(), _shares(torch, leaf)
    del kept
    is_counted = after[0] == before[0] + 1 and before[1] == 1 and after[1] > 1
    return is_counted and before[2] == after[2] == _ALONE_ON_STORAGE


def _shares(torch: Any, tensor: Any) -> int:
    """References to a tensor's memory, including the reader's."""
    storage = torch._C.TensorBase.untyped_storage(tensor)
    return torch._C._storage_Use_Count(storage._cdata)


def is_of_cpp_alone(torch: Any, tensor: Any) -> bool:
    """Whether only C++ refers to a tensor that has one reference, and nothing else to its memory."""
    try:
        return (
            Counts.find(torch)
            and torch._C.TensorBase._use_count(tensor) > 1
            and _shares(torch, tensor) == _ALONE_ON_STORAGE
        )
    except Exception:
        return False


class Autocast:
    """Whether autocast is on in the main thread at every check for a while: where it is on for only a part of each
    step, each step empties its cache."""

    # Callbacks for the main thread stay for the life of the process: they may be called late.
    _calls: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self._device: Optional[str] = None
        # When it was on, whether it was ever off, and whether the main thread's answer is pending.
        self._on: list[float] = []
        self._was_off = self._is_awaited = False

    def may_keep(self, torch: Any, tensor: Any) -> bool:
        """Whether autocast keeps a copy of such a tensor: a weight of full precision."""
        table = _reading.table(torch._C.TensorBase)
        try:
            self._device = self._device or table["device"].__get__(tensor).type
            is_weight = table["is_leaf"].__get__(tensor) and table["requires_grad"].__get__(tensor)
            return bool(is_weight) and table["dtype"].__get__(tensor) is torch.float32
        except Exception:
            return False

    @property
    def is_on(self) -> Optional[bool]:
        """Whether it is on and stays on; None while that is unknown."""
        if self._was_off:
            return False
        is_known = len(self._on) >= LOOKS_MIN and self._on[-1] - self._on[0] >= LOOKED_S_MIN
        return True if is_known else None

    def look(self, torch: Any) -> None:
        """Checks whether it is on now, or has the main thread do so."""
        if _thread.get_ident() == main_thread():
            self._look(torch)
        elif not self._is_awaited:

            def look(_: Any) -> int:
                self._is_awaited = False
                self._look(torch)
                return 0

            call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(look)
            # (The previous one has been called, and may be returning.)
            self._calls[:-1] = []
            self._calls.append(call)
            self._is_awaited = ctypes.pythonapi.Py_AddPendingCall(call, None) == 0

    def _look(self, torch: Any) -> None:
        try:
            is_on = torch._C.is_autocast_enabled(self._device) and torch._C.is_autocast_cache_enabled()
        except Exception:
            # A version that cannot be queried for a device.
            is_on = False
        self._on.append(time.monotonic())
        self._was_off = self._was_off or not is_on
