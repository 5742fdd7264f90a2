"""The limit that a program sets on its own allocator (`torch.cuda.set_per_process_memory_fraction`).

The allocator refuses what exceeds it, however much the device has. So room on the device is room below this limit.
Guarantees: the limit is read after the program has set it, and once at the first end of a step, for limits from before
the recording. PyTorch asks the driver only where a limit is set. Nothing is raised into the program.
"""

from __future__ import annotations

from typing import Any

# A process rarely uses more devices.
DEVICES_MAX = 64


class Limit:
    """Reports the limits of this process's devices to the native module, like counters."""

    def __init__(self) -> None:
        self._looked = False
        self._known: dict[int, int] = {}

    def step_ended(self, torch: Any, native: Any) -> None:
        """A step has ended on this thread."""
        if not self._looked:
            self.look(torch, native)

    def look(self, torch: Any, native: Any) -> None:
        """Reads the limits now."""
        self._looked = True
        read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        if read is None:
            return
        try:
            for ordinal in range(min(torch.cuda.device_count(), DEVICES_MAX)):
                fraction = read(ordinal)
                if fraction >= 1.0 and ordinal not in self._known:
                    continue
                bytes_max = int(fraction * torch.cuda.mem_get_info(ordinal)[1])
                if self._known.get(ordinal) != bytes_max:
                    self._known[ordinal] = bytes_max
                    native.counters(ordinal, limit=bytes_max)
        except Exception:
            # (A device may be unusable. The recording goes on without its limit.)
            return
