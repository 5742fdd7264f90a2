"""Recognises the program's tensors, and finds the tensors on the requested blocks.

Guarantees: a tensor belongs to the block in which its storage begins, so views and slices have the block of their base.
If a storage does not fit the block's size, the block was freed and its memory was allocated again. Such a tensor does
not count. Nothing is dispatched: subclasses and modes that would run Python code are not called.
Does not read tensors whose class has its own `__torch_dispatch__`. The tensors that they wrap are found separately.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Optional

from memctl_agent._holders import _reading

# The allocator rounds small requests up to multiples of this. So a block may be larger than its storage by less than
# this.
ROUNDED = 512
# The allocator may also return blocks of up to this many times the requested size.
LARGER_MAX = 2


class Tensors:
    """torch's tensor classes, and the blocks."""

    def __init__(self, torch: Any, blocks: Sequence[tuple[int, int]]) -> None:
        self.tensor: type = torch.Tensor
        self._address = getattr(torch._C, "_data_address", None)
        self._storage = torch._C.TensorBase.untyped_storage
        self._bytes = torch._C.StorageBase.nbytes
        self._plain = (self.tensor, getattr(torch.nn, "Parameter", self.tensor))
        disabled = torch._C._disabled_torch_dispatch_impl
        asked, refused = [self.tensor], []
        for cls in asked:
            for derived in type.__subclasses__(cls):
                own = _own_dispatch(derived, self.tensor)
                known = any(derived is other for other in (*asked, *refused))
                if not known:
                    (asked if own is None or own is disabled else refused).append(derived)
        self.classes = tuple(asked)
        self.class_ids = frozenset(map(id, asked))
        self.refused = tuple(refused)
        order = sorted(range(len(blocks)), key=lambda number: blocks[number][0])
        self._numbers = order
        self._starts = [blocks[number][0] for number in order]
        self._ends = [blocks[number][0] + blocks[number][1] for number in order]

    @property
    def storages(self) -> tuple[Any, ...]:
        """What the native walk needs for the rule of `fits`. It calls only functions of C, because bytecode may give
        the interpreter's lock to another thread."""
        return self._storage, self._bytes, self._plain, ROUNDED, LARGER_MAX

    @property
    def can_tell(self) -> bool:
        """Whether this torch reports the address of a tensor's storage."""
        return self._address is not None

    def block_of(self, tensor: Any) -> Optional[int]:
        """The index of the requested block that has a tensor's memory; `None` if there is none."""
        try:
            address = self._address(tensor)  # type: ignore[misc]
        except Exception:
            # The tensor has no storage: it is sparse, wrapped by functorch, or of a backend without addresses.
            return None
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._ends[place]:
            return None
        return self._numbers[place] if self.fits(tensor, self._ends[place] - self._starts[place]) else None

    def fits(self, tensor: Any, block: int) -> bool:
        """Whether a block of this size can have been allocated for a tensor's storage.

        True if this is unknown. A subclass may have a `__torch_function__`, which is code of the program, so its
        storage is not read.
        """
        if not any(type(tensor) is plain for plain in self._plain):
            return True
        try:
            size = self._bytes(self._storage(tensor))
        except Exception:
            return True
        return not size or (size <= block and (block - size < ROUNDED or size * LARGER_MAX >= block))


def _own_dispatch(cls: type, tensor: type) -> Any:
    """A subclass's replacement for `Tensor.__torch_dispatch__`."""
    for base in _reading.bases(cls):
        if base is tensor:
            return None
        own = _reading.table(base).get("__torch_dispatch__")
        if own is not None:
            return own
    return None
