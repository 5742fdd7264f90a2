"""Bounded caches, as projects write them in a file of their own next to the training."""

from __future__ import annotations

import collections
import random
from typing import Callable, Optional

import torch


class LRUCache:
    """A mapping of bounded size that evicts the least recently used entry."""

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self._data: dict[int, torch.Tensor] = {}
        self._order: collections.OrderedDict[int, None] = collections.OrderedDict()

    def get(self, key: int, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self._data:
            self._data[key] = make()
            self._order[key] = None
            if len(self._data) > self.maxsize:
                oldest, _ = self._order.popitem(last=False)
                del self._data[oldest]
        self._order.move_to_end(key)
        return self._data[key]


class MemoryBank:
    """Keeps a bounded number of tensors; once it is full, a new one replaces any other."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[torch.Tensor] = []
        self._random = random.Random(5)

    def add(self, tensor: torch.Tensor) -> None:
        if len(self.entries) < self.capacity:
            self.entries.append(tensor)
        else:
            self.entries[self._random.randrange(self.capacity)] = tensor


class Ring:
    """The last outputs, in preallocated slots."""

    def __init__(self, places: int) -> None:
        self.places: list[Optional[torch.Tensor]] = [None] * places
        self.at = 0

    def add(self, tensor: torch.Tensor) -> None:
        self.places[self.at % len(self.places)] = tensor
        self.at += 1
