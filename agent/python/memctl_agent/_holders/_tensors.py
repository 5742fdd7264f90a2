"""The program's tensors, and which of them lie on the blocks that are asked about.

Guarantees: a tensor lies on the block in which its storage begins, so views and slices are found with what they were
cut from. Nothing is dispatched: a subclass or a mode that would run Python code for it is not asked.
Refuses: tensors whose class has a `__torch_dispatch__` of its own. What they wrap is found as tensors of its own.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Optional

from memctl_agent._holders import _reading


class Tensors:
    """What torch's classes are, and the blocks."""

    def __init__(self, torch: Any, blocks: Sequence[tuple[int, int]]) -> None:
        self.tensor: type = torch.Tensor
        self._address = getattr(torch._C, "_data_address", None)
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
    def can_tell(self) -> bool:
        """Whether this torch tells where a tensor's storage begins."""
        return self._address is not None

    def block_of(self, tensor: Any) -> Optional[int]:
        """The number of the block on which a tensor lies, if it is one of those asked about."""
        try:
            address = self._address(tensor)  # type: ignore[misc]
        except Exception:
            # It has no storage: sparse, wrapped by functorch, or of a backend without addresses.
            return None
        place = bisect.bisect_right(self._starts, address) - 1
        return self._numbers[place] if place >= 0 and address < self._ends[place] else None


def _own_dispatch(cls: type, tensor: type) -> Any:
    """What a subclass has in place of `Tensor.__torch_dispatch__`."""
    for base in _reading.bases(cls):
        if base is tensor:
            return None
        own = _reading.table(base).get("__torch_dispatch__")
        if own is not None:
            return own
    return None
