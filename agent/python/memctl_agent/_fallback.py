"""The level `blocks`: reads counters and snapshots of the blocks through Python, if the allocator cannot be hooked.

Guarantees: reads at the ends of steps and epochs. If none of them has ended for a second, a thread reads, because
programs that only serve mark neither. Snapshots take less than 1 % of the elapsed time. Devices that torch has not used
are not read. The user's peaks are never reset. Figures that the allocator does not report are not sent.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable

# Minimum time between snapshots at the ends of steps: a multiple of the duration of the last snapshot, and a number of
# seconds.
SNAPSHOT_SHARE = 100.0
SNAPSHOT_S_MIN = 10.0
# The thread reads counters if no step or epoch has ended for this long.
COUNTERS_EVERY_S = 1.0


class Fallback:
    """Reads the figures of the devices, and sends them through the native module."""

    def __init__(self, torch: Any, native: Any, ordinals: list[int]) -> None:
        self._torch, self._native, self._ordinals = torch, native, ordinals
        self._with_blocks = str(torch._C._cuda_getAllocatorBackend()) == "native"
        self._next_snapshot = 0.0
        self._read_at = time.monotonic()
        # This is not an Event. An Event has a lock, and the thread could hold it during a fork.
        self._over = False

    def begin(self, by_clock: Callable[[bool], None]) -> None:
        """Starts the thread. It calls `by_clock` if no step or epoch has ended for a while."""
        threading.Thread(target=self._run, args=(by_clock,), name="memctl-counters", daemon=True).start()

    def end(self) -> None:
        """Makes the thread end. It may finish a reading after the session has ended, and then the reading has no
        effect."""
        self._over = True

    def _run(self, by_clock: Callable[[bool], None]) -> None:
        while not self._over:
            wait = self._read_at + COUNTERS_EVERY_S - time.monotonic()
            if wait > 0.0:
                time.sleep(wait)
            else:
                by_clock(False)

    def by_clock(self, _is_epoch: bool) -> None:
        """Reads after a second in which no step or epoch has ended."""
        self._read_at = time.monotonic()
        for ordinal in self._ordinals:
            self._counters(ordinal)

    def boundary(self, is_epoch: bool) -> None:
        """Reads before a step or an epoch ends."""
        self._read_at = time.monotonic()
        used = [ordinal for ordinal in self._ordinals if self._counters(ordinal)]
        now = time.monotonic()
        if not self._with_blocks or not used or (not is_epoch and now < self._next_snapshot):
            return
        segments = self._segments()
        for ordinal in used:
            self._native.blocks(ordinal, [segment for segment in segments if segment["device"] == ordinal])
        done = time.monotonic()
        self._next_snapshot = done + max(SNAPSHOT_S_MIN, SNAPSHOT_SHARE * (done - now))

    def _counters(self, ordinal: int) -> bool:
        """Sends the counters of a device. Returns whether torch uses it."""
        stats = self._torch.cuda.memory_stats_as_nested_dict(ordinal)
        reserved = _total(stats, "reserved_bytes")
        if not reserved["peak"]:
            return False
        allocated, active = _total(stats, "allocated_bytes"), _total(stats, "active_bytes")
        self._native.counters(
            ordinal,
            allocated["current"],
            active["current"],
            reserved["current"],
            allocated["peak"],
            reserved["peak"],
            int(stats.get("num_alloc_retries", 0)),
            int(stats.get("num_ooms", 0)),
        )
        return True

    def _segments(self) -> list[Any]:
        """The segments of all devices, without traces if torch can leave them out."""
        snapshot = self._torch.cuda.memory_snapshot
        try:
            return snapshot(include_traces=False)
        except TypeError:
            return snapshot()


def _total(stats: dict[str, Any], name: str) -> dict[str, int]:
    """The current value and the peak for both pools together; zeros if the backend has no counters."""
    found = stats.get(name, {}).get("all", {})
    return {"current": int(found.get("current", 0)), "peak": int(found.get("peak", 0))}
