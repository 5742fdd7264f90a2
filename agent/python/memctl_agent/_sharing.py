"""Detects features that share device memory in this process: CUDA IPC, RDMA (NIXL, UCX), PyTorch's symmetric memory.

With `expandable_segments:True`, memory is mapped page by page. The features may refuse such memory, or become many
times slower with it. So advice that enables this setting must mention them. The check runs at the end of a step, at
most every few seconds, and at the end of the session.
Guarantees: imports, loads and wraps nothing, only reads existing dictionaries, and raises nothing into the program.
Does not guess. If an extension shares memory through its own calls, this is not detected.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable

EVERY_S = 5.0
# Maximum number of entries of torch's table of shared storages that are read.
SHARED_MAX = 4096
# A CUDA IPC handle has 64 bytes, or more with torch's prefix. A name in shared memory is shorter.
HANDLE_BYTES = 64
RDMA_MODULES = ("nixl", "nixl_cu12", "nixl_cu13", "ucp", "ucxx")
SYMMETRIC = ("_symm_mem_pools", "_group_name_to_store", "_group_name_to_workspace_tensor")


class Sharing:
    """Checks for the features. Once a feature was detected, every check reports it to the native module, like a
    counter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0
        self._seen = (False, False, False)

    def step_ended(self, torch: Any, native: Any) -> None:
        """A step has ended on this thread."""
        if self._clock() >= self._next:
            self.look(torch, native)

    def look(self, torch: Any, native: Any) -> None:
        """Checks now."""
        self._next = self._clock() + EVERY_S
        try:
            ipc, rdma, symmetric = self._seen
            self._seen = (ipc or _cuda_ipc(), rdma or _rdma(), symmetric or _symmetric())
            if any(self._seen):
                native.counters(torch.cuda.current_device(), sharing=self._seen)
        except Exception:
            # (Another thread may change a table during the check. The next check reads it again.)
            return


def _cuda_ipc() -> bool:
    """Whether torch has shared a CUDA storage with another process, or has received one. Then its table contains IPC
    handles."""
    shared = getattr(sys.modules.get("torch.multiprocessing.reductions"), "shared_cache", None)
    if not shared or len(shared) > SHARED_MAX:
        return False
    return any(_is_handle(key[0] if isinstance(key, tuple) else key) for key in list(shared))


def _is_handle(key: object) -> bool:
    return isinstance(key, bytes) and len(key) >= HANDLE_BYTES


def _rdma() -> bool:
    return any(name in sys.modules for name in RDMA_MODULES)


def _symmetric() -> bool:
    """Whether a pool, a group or a workspace of symmetric memory was created."""
    module = sys.modules.get("torch.distributed._symmetric_memory")
    return module is not None and any(getattr(module, name, None) for name in SYMMETRIC)
