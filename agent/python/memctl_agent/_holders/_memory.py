"""Reads words of memory at an address of this process, for two purposes: the slots of a frame (`_frames`), and whether
a saved tensor has hooks (`_graph`). Neither CPython nor torch reports these in all versions.

Guarantees: reads go through `/proc/self/mem`, so an unmapped address gives an empty result and no crash. Nothing is
written. Each caller first verifies the layout of a structure on an object of its own. If the layout is different, the
caller does not read such structures.
Does not make an object from the words.
"""

from __future__ import annotations

import os
import struct


class Memory:
    """This process's memory, open for reading until `close` is called."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """`count` words of eight bytes; empty if they cannot be read."""
        if self._file < 0 or not 0 < address < 2**47:
            return ()
        try:
            read = os.pread(self._file, 8 * count, address)
        except OSError:
            return ()
        return struct.unpack(f"={len(read) // 8}Q", read[: len(read) // 8 * 8])

    def close(self) -> None:
        """Stops reading."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
