"""Finds tensors that only C++ holds, and determines whether autocast's cache is the holder.

In some versions of torch, all references from C++ together count as one reference of a tensor's Python object. The
other references are Python's. In these versions the counts are exact. Then only C++ holds a tensor under three
conditions: its object has one reference, C++ refers to it, and no other tensor shares its memory. This module tests on
a tensor of its own whether torch counts like that.

Autocast keeps a copy of each weight that it has converted, until the program leaves the outermost autocast. The graph
of the copy keeps the weight. A thread can only read the autocast state of its own. So the main thread is asked between
two of its instructions, in the way that signals are handled.
Guarantees: no tensor is changed or kept.
Does not report the autocast state of threads other than the main thread.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
import time
from typing import Any, ClassVar, Optional

from memctl_agent._holders import _reading
from memctl_agent._holders._roots import main_thread

# Number of checks, and time in seconds, during which autocast must be on.
LOOKS_MIN = 5
LOOKED_S_MIN = 0.3
# Time limit in seconds for the thread that determines how torch counts.
_WAIT_S = 0.02
# The number of references to a storage from the tensor itself and from the reader of the storage.
_ALONE_ON_STORAGE = 2


class Counts:
    """Determines how torch counts references, once per process."""

    is_known = False
    are_of_cpp = False

    @classmethod
    def find(cls, torch: Any) -> bool:
        """Whether all references from C++ count as one reference of the Python object."""
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

            # This runs in a separate thread, because the program's modes, hooks and profilers belong to the program's
            # threads.
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
    """The number of references to a tensor's memory, including the reader's."""
    storage = torch._C.TensorBase.untyped_storage(tensor)
    return torch._C._storage_Use_Count(storage._cdata)


def is_of_cpp_alone(torch: Any, tensor: Any) -> bool:
    """Whether only C++ refers to a tensor that has one reference, and nothing else refers to its memory."""
    try:
        return (
            Counts.find(torch)
            and torch._C.TensorBase._use_count(tensor) > 1
            and _shares(torch, tensor) == _ALONE_ON_STORAGE
        )
    except Exception:
        return False


class Autocast:
    """Determines whether autocast is on in the main thread for a while, at every check. If it is on only for a part of
    each step, its cache is emptied in each step."""

    # Callbacks for the main thread are kept for the life of the process, because they may be called late.
    _calls: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self._device: Optional[str] = None
        # The times of checks at which autocast was on, whether it was ever off, and whether the main thread's answer is
        # pending.
        self._on: list[float] = []
        self._was_off = self._is_awaited = False

    def may_keep(self, torch: Any, tensor: Any) -> bool:
        """Whether autocast may keep a copy of this tensor. It keeps copies only of weights of full precision."""
        table = _reading.table(torch._C.TensorBase)
        try:
            self._device = self._device or table["device"].__get__(tensor).type
            is_weight = table["is_leaf"].__get__(tensor) and table["requires_grad"].__get__(tensor)
            return bool(is_weight) and table["dtype"].__get__(tensor) is torch.float32
        except Exception:
            return False

    @property
    def is_on(self) -> Optional[bool]:
        """Whether autocast is on and stays on; None while that is unknown."""
        if self._was_off:
            return False
        is_known = len(self._on) >= LOOKS_MIN and self._on[-1] - self._on[0] >= LOOKED_S_MIN
        return True if is_known else None

    def look(self, torch: Any) -> None:
        """Checks whether autocast is on now. In another thread, requests that the main thread checks it."""
        if _thread.get_ident() == main_thread():
            self._look(torch)
        elif not self._is_awaited:

            def look(_: Any) -> int:
                self._is_awaited = False
                self._look(torch)
                return 0

            call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(look)
            # (The previous callback was called already. It may still be returning, so it is kept until the next call.)
            self._calls[:-1] = []
            self._calls.append(call)
            self._is_awaited = ctypes.pythonapi.Py_AddPendingCall(call, None) == 0

    def _look(self, torch: Any) -> None:
        try:
            is_on = torch._C.is_autocast_enabled(self._device) and torch._C.is_autocast_cache_enabled()
        except Exception:
            # This version of torch does not report the state of autocast for a device.
            is_on = False
        self._on.append(time.monotonic())
        self._was_off = self._was_off or not is_on
