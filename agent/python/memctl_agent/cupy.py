"""For CuPy: `memctl_agent.cupy.install(job="...")`, or `with memctl_agent.cupy.MemctlHook(): ...`.

CuPy calls a `MemoryHook` for each action of its memory pool. This hook records every allocation, free, new segment and
failed request, with the Python lines that made it. CuPy's hooks are per thread, so a `MemctlHook` must be entered in
every thread that allocates. Other threads are not recorded, but the recording stays consistent.
Guarantees: no call of the hook raises into CuPy.
Refuses: `MemoryAsyncPool` (CuPy calls no hook for it), and a process in which PyTorch or JAX is recorded. CuPy's memory
then appears only in the device's used memory. CuPy does not report memory that the pool releases to the driver, so this
is only noticed at the ends of steps and epochs. Pools other than the default one are assumed to release nothing.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from memctl_agent._session import SESSION, is_disabled, is_first_local_rank, load_native, say

try:
    # `cupy` is imported by name, because type checkers would take it for this file.
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
# Minimum interval between queries of the pool's bytes. The pool adds up its blocks for that, which is too slow for
# every step.
BOUNDARY_S_MIN = 0.1
# CuPy splits every block, as PyTorch does with this setting, so the block map follows its pool exactly.
CONF = "expandable_segments:True"


class MemctlHook(MemoryHook):
    """Attaches memctl when it is first entered, and records this thread's allocations while it is entered.

    Arguments are those of `memctl_agent.attach`. The session ends with `memctl_agent.detach()` or the process.
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
        # If another hook was entered before this one, that hook stays.
        if hooks.get(self.name) is self:
            del hooks[self.name]

    def alloc_postprocess(self, **event: Any) -> None:
        """The pool requested memory from the driver. The pointer is 0 if it got none."""
        if event["mem_ptr"]:
            _RECORDER.record(event["device_id"], SEGMENT, event["mem_ptr"], event["mem_size"])

    def malloc_postprocess(self, **event: Any) -> None:
        """The pool allocated a block, failed (no pointer, no object), or got a request of 0 bytes (no pointer)."""
        if event["mem_ptr"]:
            _RECORDER.record(event["device_id"], ALLOC, event["mem_ptr"], event["mem_size"])
        elif not event["pmem_id"]:
            _RECORDER.out_of_memory(event["device_id"], event["mem_size"])

    def free_preprocess(self, **event: Any) -> None:
        """A block is about to be freed. This is recorded before another thread can get the block."""
        _RECORDER.record(event["device_id"], FREE, event["mem_ptr"], event["mem_size"])


class Recorder:
    """The only CuPy session of the process. The hooks of all threads write to it."""

    def __init__(self) -> None:
        self.attached = False
        self._record: Any = None
        self._native: Any = None
        self._devices: set[int] = set()
        self._last_s = 0.0

    def attach(self, wanted: dict[str, Any], stacks: bool) -> bool:
        """Starts a session, unless there is one. Returns whether there is one now."""
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
                "CuPy's allocator is not its memory pool, and calls no hook; "
                "use cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc) to have it recorded"
            )
        self._native, held = load_native(), pool.used_bytes()
        start = {**wanted, "framework": f"cupy {cupy.__version__}", "conf": CONF, "devices": _devices(self._native)}
        done = SESSION.attach_other(start, begin=lambda: self._begin(stacks), boundary=self._boundary, end=self._end)
        if done and held:
            _refuse(
                f"CuPy held {held} bytes before memctl was attached, which are not recorded; "
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
        # This removes the hook of this thread. Hooks of other threads no longer have an effect.
        memory_hook.get_memory_hooks().pop(MemctlHook.name, None)

    def record(self, device: int, action: int, pointer: int, size: int) -> None:
        """Passes an event on."""
        record = self._record
        if record is None:
            return
        try:
            stream = 0 if action == FREE else cupy.cuda.get_current_stream().ptr
            record(device, action, pointer, size, stream)
            self._devices.add(device)
        except Exception as error:
            # This may also happen late in an interpreter's life, when arrays are freed after the modules.
            self._trouble(error)

    def out_of_memory(self, device: int, size: int) -> None:
        """A request failed. CuPy has released what it could, and now raises."""
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
        """A step or an epoch is about to end. Records what the pool holds now, and the device's memory."""
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
    """Records the calling thread's allocations from now on. Arguments are those of `MemctlHook`.

    Returns whether anything is recorded. If not, one line on stderr has the reason.
    """
    MemctlHook(job, **options).__enter__()
    return _RECORDER.attached


def _pool() -> Any:
    """CuPy's default pool, if it is the current allocator."""
    allocator = cupy.cuda.get_allocator()
    pool = cupy.get_default_memory_pool()
    return pool if getattr(allocator, "__self__", None) is pool else None


def _devices(native: Any) -> list[tuple[int, Optional[str], Optional[str], Optional[int]]]:
    """Ordinal, UUID, name and bytes of every visible device. Makes no context."""
    found = []
    for ordinal in range(cupy.cuda.runtime.getDeviceCount()):
        properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
        name = properties["name"].decode(errors="replace")
        uuid = None if native is None else native.device_uuid(ordinal)
        found.append((ordinal, uuid, name, int(properties["totalGlobalMem"])))
    return found


def _refuse(text: str) -> bool:
    """Reports what is not recorded, on one rank of a machine."""
    SESSION.trouble = text
    if is_first_local_rank():
        say(text)
    return False


_RECORDER = Recorder()
