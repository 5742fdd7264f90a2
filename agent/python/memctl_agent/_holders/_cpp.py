"""Tensors that C++ alone holds, and whether autocast's cache is what does.

Where C++ counts as one reference of a tensor's Python object, beside those of Python, the counts say it exactly: one
reference, a tensor that C++ refers to, and memory that no other tensor shares. Whether torch counts like that is found
out on a tensor of its own.
Autocast keeps a copy of each weight that it has converted until the outermost autocast is left, and the graph of the
copy keeps the weight. Whether it is on is known to each thread alone: the main thread is asked between two of its
instructions, as signals are handled.
Guarantees: no tensor is changed or kept. Refuses: to tell of other threads' autocast.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
from typing import Any, ClassVar, Optional

from memctl_agent._holders import _reading
from memctl_agent._holders._roots import main_thread

# How long the thread may take that looks at how torch counts.
_WAIT_S = 0.02
# The tensor itself and who looks at its storage.
_ALONE_ON_STORAGE = 2


class Counts:
    """How torch counts, found out once in a process."""

    is_known = False
    are_of_cpp = False

    @classmethod
    def find(cls, torch: Any) -> bool:
        """Whether C++ counts as a reference of its own."""
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

            # In a thread of its own: the program's modes, hooks and profilers are those of its threads.
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
    """References to a tensor's memory, with that of who looks."""
    storage = torch._C.TensorBase.untyped_storage(tensor)
    return torch._C._storage_Use_Count(storage._cdata)


def is_of_cpp_alone(torch: Any, tensor: Any) -> bool:
    """Whether nothing but C++ refers to a tensor that has one reference, nor anything else to its memory."""
    try:
        return (
            Counts.find(torch)
            and torch._C.TensorBase._use_count(tensor) > 1
            and _shares(torch, tensor) == _ALONE_ON_STORAGE
        )
    except Exception:
        return False


class Autocast:
    """Whether autocast is on in the main thread."""

    # What is called in the main thread stays for as long as the process: it may be called late.
    _asked: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.is_on: Optional[bool] = None
        self._is_asked = False

    def may_keep(self, torch: Any, tensor: Any) -> bool:
        """Whether autocast keeps a copy of such a tensor: a weight of full precision."""
        table = _reading.table(torch._C.TensorBase)
        try:
            is_weight = table["is_leaf"].__get__(tensor) and table["requires_grad"].__get__(tensor)
            return bool(is_weight) and table["dtype"].__get__(tensor) is torch.float32
        except Exception:
            return False

    def ask(self, torch: Any, tensor: Any) -> None:
        """Looks whether it is on for the device of a tensor, once."""
        if self._is_asked:
            return
        self._is_asked = True
        try:
            device = _reading.table(torch._C.TensorBase)["device"].__get__(tensor).type
        except Exception:
            return
        if _thread.get_ident() == main_thread():
            self._look(torch, device)
            return

        def look(_: Any) -> int:
            self._look(torch, device)
            return 0

        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(look)
        self._asked.append(call)
        if ctypes.pythonapi.Py_AddPendingCall(call, None) != 0:
            self.is_on = False

    @property
    def is_awaited(self) -> bool:
        """Whether the main thread was asked and has not said yet."""
        return self._is_asked and self.is_on is None

    def _look(self, torch: Any, device: str) -> None:
        try:
            self.is_on = torch._C.is_autocast_enabled(device) and torch._C.is_autocast_cache_enabled()
        except Exception:
            # A version that cannot be asked about a device.
            self.is_on = False
