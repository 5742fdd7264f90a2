"""Stand-ins for the native module and for CuPy's pool, in tests of event sources other than PyTorch.

The module writes down its calls; whether the native one accepts them is tested end to end in `live/test_others.py`.
The pool works as CuPy's does: blocks of 512 bytes, best fit, every block split, neighbours of a segment merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional


class NativeError(RuntimeError):
    """Replaces the native module's exception."""


class Native:
    """Accepts a session, events and counters."""

    NativeError = NativeError

    def __init__(self) -> None:
        self.started: Optional[dict[str, Any]] = None
        self.refuses_foreign = False
        self.events: list[tuple[int, ...]] = []
        self.counted: list[tuple[int, dict[str, Any]]] = []
        self.marks: list[tuple[int, int, str]] = []
        self.stops = 0

    def start(self, **what: Any) -> dict[str, object]:
        """One session at a time."""
        if self.started is not None:
            raise NativeError("one at a time")
        self.started = what
        return {"mode": "thread", "job": what["job"]}

    def attach_foreign(self) -> None:
        """Fails if the test wants it to."""
        if self.refuses_foreign:
            raise NativeError("PyTorch's allocator is recorded here")

    def check_stacks(self) -> bool:
        """Stacks work."""
        return True

    def record(self, *event: int) -> bool:
        """An event."""
        self.events.append(event)
        return True

    def counters(self, device: int, allocated: Optional[int] = None, **more: Any) -> bool:
        """A sample."""
        self.counted.append((device, {"allocated": allocated, **more}))
        return True

    def mark(self, kind: int, number: int = 0, name: str = "") -> bool:
        """A mark."""
        self.marks.append((kind, number, name))
        return True

    def device_uuid(self, ordinal: int) -> Optional[str]:
        """No device is known."""
        return None

    def status(self) -> dict[str, object]:
        """The minimum that the session needs."""
        return {"attached": True, "trouble": None}

    def stop(self, failure: Optional[str] = None, patience_s: float = 0.25, leaving: bool = False) -> dict[str, object]:
        """Ends the session."""
        self.stops, self.started = self.stops + 1, None
        return {"delivered": True}

    def silence(self) -> None:
        """Accepts no more data."""


class Pool:
    """Calls hooks as the pseudo code in the documentation of `cupy.cuda.MemoryHook` does, and keeps a ledger."""

    def __init__(self, hooks: Callable[[], dict[str, Any]], stream: int = 11) -> None:
        self._hooks, self._stream = hooks, stream
        # Segments and free blocks by address; addresses that the driver reuses, and the next unused address.
        self._segments: dict[int, int] = {}
        self._free: dict[int, int] = {}
        self._returned: dict[int, int] = {}
        self._fresh = 1 << 30
        self.used = 0
        self.ledger: list[tuple[str, int, int, int]] = []

    def total_bytes(self) -> int:
        """Bytes from the driver."""
        return sum(self._segments.values())

    def used_bytes(self) -> int:
        """Bytes that are allocated."""
        return self.used

    def _call(self, name: str, **event: int) -> None:
        for hook in list(self._hooks().values()):
            getattr(hook, name)(device_id=0, **event)

    def _take(self, rounded: int, fails: bool) -> int:
        fitting = [(size, address) for address, size in self._free.items() if size >= rounded]
        if fitting:
            size, address = min(fitting)
            del self._free[address]
            if size > rounded:
                self._free[address + rounded] = size - rounded
            return address
        self._call("alloc_preprocess", mem_size=rounded)
        address = 0 if fails else self._from_driver(rounded)
        self._call("alloc_postprocess", mem_size=rounded, mem_ptr=address)
        if address:
            self._segments[address] = rounded
            self.ledger.append(("segment_alloc", rounded, address, self._stream))
        return address

    def _from_driver(self, rounded: int) -> int:
        for address, size in self._returned.items():
            if size >= rounded:
                del self._returned[address]
                return address
        # With a gap, so that segments are not adjacent.
        address, self._fresh = self._fresh, self._fresh + rounded + (1 << 20)
        return address

    def malloc(self, size: int, *, fails: bool = False) -> tuple[int, int]:
        """A block, from the driver if none fits."""
        rounded = (size + 511) // 512 * 512
        self._call("malloc_preprocess", size=size, mem_size=rounded)
        pointer = self._take(rounded, fails) if size else 0
        pmem = 99 if pointer or not size else 0
        if pointer:
            self.ledger.append(("alloc", rounded, pointer, self._stream))
            self.used += rounded
        self._call("malloc_postprocess", size=size, mem_size=rounded, mem_ptr=pointer, pmem_id=pmem)
        return pointer, rounded

    def free(self, block: tuple[int, int]) -> None:
        """Frees a block; it joins its free neighbours."""
        pointer, size = block
        self._call("free_preprocess", mem_size=size, mem_ptr=pointer, pmem_id=99)
        self.ledger += [(name, size, pointer, self._stream) for name in ("free_requested", "free_completed")]
        self.used -= size
        above = self._free.pop(pointer + size, 0)
        below = next((address for address, free in self._free.items() if address + free == pointer), None)
        start = pointer if below is None else below
        self._free[start] = (pointer - start) + size + above
        self._call("free_postprocess", mem_size=size, mem_ptr=pointer, pmem_id=99)

    def free_all_blocks(self) -> None:
        """Returns whole free segments to the driver, which reuses their addresses. No hook is called."""
        for address, size in list(self._segments.items()):
            if self._free.get(address) == size:
                del self._segments[address], self._free[address]
                self._returned[address] = size
