"""The words at an address of this process, for two facts that neither CPython nor torch tells.

Guarantees: read through `/proc/self/mem`, so an address that is not mapped is an empty answer and never a crash;
nothing is written. Whoever reads a structure finds its layout out on one of its own first, and does without where the
two do not agree.
Refuses: to turn what it read into an object.
"""

from __future__ import annotations

import os
import struct


class Memory:
    """This process's memory, open for reading until `close`."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """So many words of eight bytes; none where they cannot be read."""
        if self._file < 0 or not 0 < address < 2**47:
            return ()
        try:
            read = os.pread(self._file, 8 * count, address)
        except OSError:
            return ()
        return struct.unpack(f"={len(read) // 8}Q", read[: len(read) // 8 * 8])

    def close(self) -> None:
        """Reads nothing any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
