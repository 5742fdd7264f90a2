"""The limit that a program sets on its own allocator (`torch.cuda.set_per_process_memory_fraction`).

The allocator refuses what exceeds it, however much the device has. So room on the device is room below this limit.
Guarantees: the limit of a device is read each time after the program has set it. If none was read by the first end of a
step, the limit of the current device is read there, because the program may have set it before the recording. Limits of
other devices are not read: PyTorch makes a device current to read its limit, and before 2.11 this device stays current.
Nothing is raised into the program.
"""

from __future__ import annotations

from typing import Any


class Limit:
    """Reports the limits of this process's devices to the native module, like counters."""

    def __init__(self) -> None:
        self._looked = False
        self._known: dict[int, int] = {}

    def step_ended(self, torch: Any, native: Any) -> None:
        """A step has ended on this thread."""
        if not self._looked:
            self.look(torch, native, None)

    def look(self, torch: Any, native: Any, device: Any) -> None:
        """Reads the limit of one device, of the current one for None. The current device stays the current one."""
        self._looked = True
        read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        if read is None:
            return
        try:
            ordinal = ordinal_of(torch, device)
            with torch.cuda.device(ordinal):
                fraction = read(ordinal)
                if fraction >= 1.0 and ordinal not in self._known:
                    return
                bytes_max = int(fraction * torch.cuda.mem_get_info(ordinal)[1])
            if self._known.get(ordinal) != bytes_max:
                self._known[ordinal] = bytes_max
                native.counters(ordinal, limit=bytes_max)
        except Exception:
            # (A device may be unusable, or an allocator may not know its limit. The recording goes on without it.)
            return


def ordinal_of(torch: Any, device: Any) -> int:
    """The ordinal of a device as PyTorch's functions take it: an ordinal, a name, a `torch.device`, or None."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return int(torch.cuda.current_device()) if index is None else int(index)
