"""State that is valid within one slice of a search: its end, torch's classes, and the type rules for the native module.

Guarantees: the state holds no object of the program. It must not be reused for another slice.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from typing import Any

from memctl_agent._holders import _reading
from memctl_agent._holders._tensors import Tensors

# If less than this time is left in a slice, nothing more is begun, in microseconds.
SPARE_US = 150
# Reads a class's module.
_module_of = type.__dict__["__module__"].__get__


class Slice:
    """State that is valid within one slice."""

    def __init__(self, torch: Any, blocks: list[tuple[int, int]], near: tuple[str, ...], end_ns: int) -> None:
        self.torch, self._end_ns = torch, end_ns
        self.tensors = Tensors(torch, blocks)
        self.rules = (
            torch._C._data_address,
            self.tensors.classes,
            self.tensors.refused,
            _own_classes(),
            types.FrameType,
            _module_of,
            self.tensors.storages,
            near,
        )

    def is_left_for_graph(self, more_ms: float) -> bool:
        """Like `is_left`, for a slice that is `more_ms` longer."""
        return time.perf_counter_ns() + SPARE_US * 1000 < self._end_ns + more_ms * 1e6

    def set_near(self, near: tuple[str, ...]) -> None:
        """Sets the names of the program's own modules."""
        self.rules = (*self.rules[:-1], near)

    def end(self) -> None:
        """Ends the slice: there is no time left."""
        self._end_ns = 0

    def left_us(self) -> int:
        """Microseconds until the end of the slice."""
        return max(0, (self._end_ns - time.perf_counter_ns()) // 1000)

    def is_left(self) -> bool:
        """Whether there is time for more."""
        return self.left_us() > SPARE_US


@functools.lru_cache(maxsize=1)
def _own_classes() -> tuple[type, ...]:
    """The classes of this package. Objects that their instances hold are not the program's."""
    found = []
    for name, module in list(dict.items(sys.modules)):
        if type(name) is str and name.startswith("memctl_agent"):
            namespace = _reading.module_dict(module) or {}
            found += [one for one in list(dict.values(namespace)) if type(one) is type and one.__module__ == name]
    return tuple(found)
