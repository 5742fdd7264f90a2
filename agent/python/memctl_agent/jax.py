"""For JAX: `memctl_agent.jax.watch(job="...")`, with the level `counters`.

XLA's allocator has no hook, but it has counters. A thread samples `device.memory_stats()` of every local GPU. The
counters are also sampled at the ends of the steps and epochs that the program marks with `memctl_agent.step` and
`.epoch`.
Guarantees: nothing raises into the program. A missing counter is not sent.
Refuses: devices without `memory_stats` (CPUs), and a process in which another framework is recorded.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from memctl_agent._session import SESSION, is_disabled, is_first_local_rank, load_native, say

__all__ = ["watch"]

# Minimum interval between samples at the ends of steps. The counters of each device are a Python dictionary.
BOUNDARY_S_MIN = 0.1
# The shortest interval of the thread. `watch` is not a profiler.
EVERY_S_MIN = 0.05
# JAX's present and past names of platforms whose devices are GPUs.
PLATFORMS = ("gpu", "cuda", "rocm")


def watch(
    job: Optional[str] = None,
    *,
    every_s: float = 1.0,
    daemon: Optional[str] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    attempt: Optional[int] = None,
    labels: Optional[Mapping[str, str]] = None,
) -> bool:
    """Samples the memory counters of this process's GPUs every `every_s` seconds, until `memctl_agent.detach()`.

    This function initialises JAX's devices, like any computation. So call it after `jax.distributed.initialize()`. The
    other arguments are those of `memctl_agent.attach`. If JAX runs on several hosts, rank and world size come from JAX.
    Returns whether counters are sampled. Otherwise one line on stderr gives the reason.
    """
    if is_disabled():
        return False
    try:
        wanted = {"job": job, "daemon": daemon, "rank": rank, "world_size": world_size, "attempt": attempt}
        return _watch(wanted, max(float(every_s), EVERY_S_MIN), {str(k): str(v) for k, v in (labels or {}).items()})
    except Exception as error:
        return _refuse(f"could not watch JAX: {type(error).__name__}: {error}")


def _watch(wanted: dict[str, Any], every_s: float, labels: dict[str, str]) -> bool:
    try:
        # `jax` is imported by its full name, because type checkers would otherwise mistake it for this file.
        jax: Any = importlib.import_module("jax")
    except ImportError as error:
        return _refuse(f"jax cannot be imported ({error})")
    found = counting(jax.local_devices())
    if not found:
        return _refuse(
            f"nothing to watch: no device of jax {jax.__version__} ({jax.default_backend()}) has memory_stats(); "
            "install a GPU build, such as jax[cuda13], on a machine with a GPU"
        )
    if wanted["rank"] is None and wanted["world_size"] is None and jax.process_count() > 1:
        wanted["rank"], wanted["world_size"] = jax.process_index(), jax.process_count()
    native = load_native()
    for ordinal, device in found:
        limit = (device.memory_stats() or {}).get("bytes_limit")
        if limit is not None:
            # This is the memory that XLA may use, not the memory of the device.
            labels[f"xla_bytes_limit.{ordinal}"] = str(int(limit))
    watcher = Watcher(native, found, every_s)
    start = {
        **wanted,
        "framework": f"jax {jax.__version__}",
        "conf": "",
        "labels": labels,
        "devices": [
            (ordinal, native and native.device_uuid(ordinal), device.device_kind, None) for ordinal, device in found
        ],
    }
    return SESSION.attach_other(start, begin=watcher.begin, boundary=watcher.boundary, end=watcher.end)


def counting(devices: Sequence[Any]) -> list[tuple[int, Any]]:
    """The GPUs with memory counters, by CUDA ordinal."""
    found: dict[int, Any] = {}
    for place, device in enumerate(devices):
        if str(getattr(device, "platform", "")).lower() not in PLATFORMS or device.memory_stats() is None:
            continue
        ordinal = getattr(device, "local_hardware_id", None)
        found.setdefault(ordinal if isinstance(ordinal, int) and ordinal >= 0 else place, device)
    return sorted(found.items())


class Watcher:
    """The thread that takes samples, and the samples at marks."""

    def __init__(self, native: Any, devices: Sequence[tuple[int, Any]], every_s: float) -> None:
        self._native, self._devices, self._every_s = native, list(devices), every_s
        self._over = threading.Event()
        self._last_s = 0.0
        self._thread = threading.Thread(target=self._run, name="memctl-jax", daemon=True)

    def begin(self) -> str:
        """Takes the first sample and starts the thread. Returns the level."""
        self.sample()
        self._thread.start()
        return "counters"

    def boundary(self, is_epoch: bool) -> None:
        """Takes a sample before the end of a step or an epoch."""
        if is_epoch or time.monotonic() - self._last_s >= BOUNDARY_S_MIN:
            self.sample()

    def end(self) -> None:
        """Makes the thread end. It may finish a sample after the session has ended, and then the sample has no
        effect."""
        self._over.set()

    def sample(self) -> None:
        """Reads every device once."""
        self._last_s = time.monotonic()
        for ordinal, device in self._devices:
            stats = device.memory_stats()
            if stats:
                self._native.counters(ordinal, **counters(stats))

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self.sample()
            except Exception as error:
                SESSION.trouble = f"JAX's counters cannot be read any more: {type(error).__name__}: {error}"
                return


def counters(stats: Mapping[str, Any]) -> dict[str, Optional[int]]:
    """XLA's counters with memctl's names. The reserved bytes are the size of XLA's pool, if it has one."""

    def of(*names: str) -> Optional[int]:
        values = [int(stats[name]) for name in names if stats.get(name) is not None]
        # A value of 0 means that there is no pool or reservation.
        return next((value for value in values if value > 0), None)

    in_use, peak = stats.get("bytes_in_use"), stats.get("peak_bytes_in_use")
    return {
        "allocated": None if in_use is None else int(in_use),
        "peak_allocated": None if peak is None else int(peak),
        "reserved": of("pool_bytes", "bytes_reserved"),
        "peak_reserved": of("peak_pool_bytes", "peak_bytes_reserved"),
    }


def _refuse(text: str) -> bool:
    """Reports why no counters are sampled. Only one rank of each machine prints it."""
    SESSION.trouble = text
    if is_first_local_rank():
        say(text)
    return False
