"""Device memory of NCCL's communicators (`ncclCommMemStats`, NCCL 2.29.7).

NCCL is queried at the end of a step, on the thread that ended the step, at most every few seconds. Only communicators
of PyTorch's process groups that a collective has already used are queried. Communicators that are being created or were
never used are not queried, so nothing waits for another rank. PyTorch 2.12 queries NCCL itself, under the
communicator's lock (`memory_stats`). With PyTorch 2.9 to 2.11, this module reads the communicator's address
(`_comm_ptr`) and calls the loaded library, if the library has the function.
Guarantees: loads no library, creates no communicator, and raises nothing into the program.
Communicators that PyTorch did not create are not included. Without NCCL's own figure nothing is sent.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any, Callable, Optional

# Minimum interval between queries. The memory grows at the first use of a communicator, and rarely later.
EVERY_S = 5.0
# After this many faults NCCL is no longer queried.
FAULTS_MAX = 3
# ncclCommMemStat_t of nccl.h.
SUSPENDED, PERSISTENT, TOTAL = 1, 2, 3
LIBRARY = "libnccl.so.2"


class Nccl:
    """Queries NCCL, and reports to the native module."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0
        self._faults = 0
        self._library: Any = None

    def step_ended(self, torch: Any, native: Any) -> None:
        """A step has ended on this thread."""
        now = self._clock()
        if now < self._next or self._faults >= FAULTS_MAX:
            return
        self._next = now + EVERY_S
        try:
            groups = _groups(torch)
            if groups and not torch.cuda.is_current_stream_capturing():
                reported = self._bytes(torch, groups)
                if reported is not None:
                    native.counters(torch.cuda.current_device(), nccl=reported)
        except Exception:
            self._faults += 1

    def _bytes(self, torch: Any, groups: list[Any]) -> Optional[int]:
        """The memory of the communicators of the current device; `None` if no communicator reports it."""
        total: Optional[int] = None
        backends: dict[int, Any] = {}
        for group in groups:
            backend = _backend(torch, group)
            if backend is not None:
                backends[id(backend)] = backend
        pointers: set[int] = set()
        for backend in backends.values():
            if not backend._get_sequence_number_for_group():
                continue
            held = _of_torch(backend)
            if held is None and hasattr(backend, "_comm_ptr"):
                pointer = int(backend._comm_ptr() or 0)
                if pointer and pointer not in pointers:
                    pointers.add(pointer)
                    held = self._of_library(pointer)
            if held is not None:
                total = held + (total or 0)
        return total

    def _of_library(self, pointer: int) -> Optional[int]:
        """The memory of a communicator, from the loaded library."""
        if self._library is None:
            self._library = _loaded()
        if self._library is False:
            return None
        value = ctypes.c_uint64()

        def ask(statistic: int) -> Optional[int]:
            code = self._library(ctypes.c_void_p(pointer), statistic, ctypes.byref(value))
            return value.value if code == 0 else None

        # A suspended communicator has released all memory except its persistent memory.
        return ask(PERSISTENT if ask(SUSPENDED) else TOTAL)


def _groups(torch: Any) -> list[Any]:
    """The process groups of this rank. Imports nothing."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None or not torch.distributed.is_initialized():
        return []
    return list(module._world.pg_map)


def _backend(torch: Any, group: Any) -> Any:
    """The CUDA backend of a group if it is NCCL's; `None` for other groups."""
    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:
        return None
    # Classes are recognised by name, because torch 2.15 has a second class (`ProcessGroupNCCL2`) that is not derived
    # from the first.
    is_nccl = any(kind.__name__.startswith("ProcessGroupNCCL") for kind in type(backend).__mro__)
    return backend if is_nccl else None


def _of_torch(backend: Any) -> Optional[int]:
    """PyTorch's figure for a backend's communicators; None if this version or this NCCL does not support it."""
    stats = getattr(backend, "memory_stats", None)
    if stats is None:
        return None
    try:
        found = stats()
    except RuntimeError:
        return None
    if "total" not in found:
        return None
    return int(found.get("persist", 0) if found.get("suspended") else found["total"])


def _loaded() -> Any:
    """The function of the library that torch has loaded; `False` if there is none."""
    try:
        # This finds the library only if it is already loaded. Calls keep the interpreter's lock, so no other Python
        # thread can end a communicator meanwhile.
        library = ctypes.PyDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        function = library.ncclCommMemStats
    except (AttributeError, OSError):
        return False
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
    return function
