"""For CuPy: `memctl_agent.cupy.install(job="...")`, or `with memctl_agent.cupy.MemctlHook(): ...`.

CuPy calls a `MemoryHook` for each action of its memory pool. This hook records every allocation, free, new segment and
failed request, with the Python lines that made it. CuPy's hooks are per thread, so each thread that allocates must
enter a `MemctlHook`. Other threads are not recorded, but the recording stays consistent.
CuPy does not report the memory that the pool releases to the driver. So such memory is noticed only at the ends of
steps and epochs. Pools other than the default one are assumed to release nothing.
Guarantees: no call of the hook raises into CuPy.
Refuses: `MemoryAsyncPool`, for which CuPy calls no hook, and a process in which PyTorch or JAX is recorded. Then CuPy's
memory is only a part of the device's used memory.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from memctl_agent._session import SESSION, is_disabled, is_first_local_rank, load_native, say

try:
    # `cupy` is imported by its full name, because type checkers would otherwise mistake it for this file.
    cupy: Any = importlib.import_module("cupy")
    memory_hook: Any = importlib.import_module("cupy.cuda.memory_hook")
except ImportError as error:
    raise ImportError(
        f"memctl_agent.cupy needs CuPy ({error}); install the build for your CUDA, such as cupy-cuda13x"
    ) from error

if TYPE_CHECKING:
    MemoryHook = object
else:
    MemoryHook = memory_hook.MemoryHook

__all__ = ["MemctlHook", "install"]

# The native module's numbers of actions.
ALLOC, FREE, SEGMENT, OUT_OF_MEMORY, HOLDS = range(1, 6)
# Minimum interval between queries of the pool's bytes. For a query, the pool adds up its blocks, which is too slow for
# every step.
BOUNDARY_S_MIN = 0.1
# CuPy splits every block, as PyTorch does with this setting. So the block map follows CuPy's pool exactly.
CONF = "expandable_segments:True"


class MemctlHook(MemoryHook):
    """Attaches memctl when it is first entered. While it is entered, it records the allocations of the thread that
    entered it.

    The arguments are those of `memctl_agent.attach`. The session ends with `memctl_agent.detach()` or with the process.
    """

    name = "memctl"

    def __init__(
        self,
        job: Optional[str] = None,
        *,
        daemon: Optional[str] = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        attempt: Optional[int] = None,
        labels: Optional[Mapping[str, str]] = None,
        stacks: bool = True,
    ) -> None:
        self._wanted: dict[str, Any] = {
            "job": job,
            "daemon": daemon,
            "rank": rank,
            "world_size": world_size,
            "attempt": attempt,
            "labels": {str(name): str(value) for name, value in (labels or {}).items()},
        }
        self._stacks = stacks

    def __enter__(self) -> MemctlHook:
        if _RECORDER.attach(self._wanted, self._stacks):
            memory_hook.get_memory_hooks().setdefault(self.name, self)
        return self

    def __exit__(self, *_: object) -> None:
        hooks = memory_hook.get_memory_hooks()
        # If another `MemctlHook` was entered before this one, its entry stays.
        if hooks.get(self.name) is self:
            del hooks[self.name]

    def alloc_postprocess(self, **event: Any) -> None:
        """The pool requested memory from the driver. The pointer is 0 if the driver gave none."""
        if event["mem_ptr"]:
            _RECORDER.record(event["device_id"], SEGMENT, event["mem_ptr"], event["mem_size"])

    def malloc_postprocess(self, **event: Any) -> None:
        """The pool allocated a block (a pointer), got a request of 0 bytes (an object without a pointer), or failed
        (neither)."""
        if event["mem_ptr"]:
            _RECORDER.record(event["device_id"], ALLOC, event["mem_ptr"], event["mem_size"])
        elif not event["pmem_id"]:
            _RECORDER.out_of_memory(event["device_id"], event["mem_size"])

    def free_preprocess(self, **event: Any) -> None:
        """A block is about to be freed. The event is recorded now, before another thread can get the block."""
        _RECORDER.record(event["device_id"], FREE, event["mem_ptr"], event["mem_size"])


class Recorder:
    """The only CuPy session of the process. The hooks of all threads report to it."""

    def __init__(self) -> None:
        self.attached = False
        self._record: Any = None
        self._native: Any = None
        self._devices: set[int] = set()
        self._last_s = 0.0

    def attach(self, wanted: dict[str, Any], stacks: bool) -> bool:
        """Begins a session, if there is none. Returns whether there is a session now."""
        if self.attached or is_disabled():
            return self.attached
        try:
            return self._attach(wanted, stacks)
        except Exception as error:
            return _refuse(f"could not attach to CuPy: {type(error).__name__}: {error}")

    def _attach(self, wanted: dict[str, Any], stacks: bool) -> bool:
        pool = _pool()
        if pool is None:
            return _refuse(
                "CuPy's allocator is not its memory pool, and it calls no hook; "
                "use cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc) to have it recorded"
            )
        self._native, held = load_native(), pool.used_bytes()
        start = {**wanted, "framework": f"cupy {cupy.__version__}", "conf": CONF, "devices": _devices(self._native)}
        done = SESSION.attach_other(start, begin=lambda: self._begin(stacks), boundary=self._boundary, end=self._end)
        if done and held:
            _refuse(
                f"CuPy already held {held} bytes when memctl was attached, and these are not recorded; "
                "install memctl before the first array"
            )
        return done

    def _begin(self, stacks: bool) -> str:
        self._native.attach_foreign()
        self._devices.clear()
        self.attached, self._record = True, self._native.record
        return "full" if stacks and self._native.check_stacks() else "no-stacks"

    def _end(self) -> None:
        self.attached, self._record = False, None
        # This removes the hook of this thread. The hooks of other threads have no effect from now on.
        memory_hook.get_memory_hooks().pop(MemctlHook.name, None)

    def record(self, device: int, action: int, pointer: int, size: int) -> None:
        """Passes an event to the native module."""
        record = self._record
        if record is None:
            return
        try:
            stream = 0 if action == FREE else cupy.cuda.get_current_stream().ptr
            record(device, action, pointer, size, stream)
            self._devices.add(device)
        except Exception as error:
            # This can also happen when the interpreter ends and frees arrays after its modules.
            self._trouble(error)

    def out_of_memory(self, device: int, size: int) -> None:
        """A request failed. CuPy has released all memory that it could, and raises next."""
        record = self._record
        if record is None:
            return
        try:
            free, _ = cupy.cuda.runtime.memGetInfo()
            record(device, OUT_OF_MEMORY, free, size)
        except Exception as error:
            self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        if SESSION is not None:
            SESSION.trouble = f"an event of CuPy's pool was not recorded: {type(error).__name__}: {error}"

    def _boundary(self, is_epoch: bool) -> None:
        """Runs before the end of a step or an epoch. Records the pool's bytes and the device's memory."""
        pool, now = _pool(), time.monotonic()
        if pool is None or not (is_epoch or now - self._last_s >= BOUNDARY_S_MIN):
            return
        self._last_s = now
        for device in sorted(self._devices):
            with cupy.cuda.Device(device):
                held, used = pool.total_bytes(), pool.used_bytes()
                free, total = cupy.cuda.runtime.memGetInfo()
            self._native.record(device, HOLDS, 0, held)
            self._native.counters(device, used, reserved=held, device_used=total - free, device_total=total)


def install(job: Optional[str] = None, **options: Any) -> bool:
    """Records the calling thread's allocations from now on. The arguments are those of `MemctlHook`.

    Returns whether the allocations are recorded. Otherwise one line on stderr gives the reason.
    """
    MemctlHook(job, **options).__enter__()
    return _RECORDER.attached


def _pool() -> Any:
    """CuPy's default pool, if it is the current allocator; otherwise `None`."""
    allocator = cupy.cuda.get_allocator()
    pool = cupy.get_default_memory_pool()
    return pool if getattr(allocator, "__self__", None) is pool else None


def _devices(native: Any) -> list[tuple[int, Optional[str], Optional[str], Optional[int]]]:
    """Ordinal, UUID, name and bytes of every visible device. Creates no context."""
    found = []
    for ordinal in range(cupy.cuda.runtime.getDeviceCount()):
        properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
        name = properties["name"].decode(errors="replace")
        uuid = None if native is None else native.device_uuid(ordinal)
        found.append((ordinal, uuid, name, int(properties["totalGlobalMem"])))
    return found


def _refuse(text: str) -> bool:
    """Reports what is not recorded. Only one rank of each machine prints it."""
    SESSION.trouble = text
    if is_first_local_rank():
        say(text)
    return False


_RECORDER = Recorder()
