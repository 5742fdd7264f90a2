"""Which side of a comparison runs which instructions.

A conditional jump after a comparison has two sides: the instructions between the jump and its target, and, if the first
side ends with a jump or by leaving the function, what follows the target.
Guarantees: reads instructions only. If no jump follows the comparison, its value goes elsewhere, and it counts as
deciding over everything in the function.
"""

from __future__ import annotations

import dis
from collections.abc import Callable

_LEAVE = frozenset(("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"))
# Instructions that turn the result of a comparison into a bool.
_BOOL = frozenset(("TO_BOOL", "UNARY_NOT", "COPY"))


class Branches:
    """The sides of a function's comparisons. `changes` says whether the instruction at a place changes the items."""

    def __init__(self, steps: list[dis.Instruction], changes: Callable[[int], bool]) -> None:
        self._steps = steps
        self._places = {one.offset: at for at, one in enumerate(steps)}
        self._changes = [changes(at) for at in range(len(steps))]

    def decides(self, comparison: int) -> bool:
        """Whether the outcome of the comparison at a place decides over a change."""
        at = comparison + 1
        while at < len(self._steps) and self._steps[at].opname in _BOOL:
            at += 1
        if at >= len(self._steps) or not self._is_conditional(at):
            return any(self._changes)
        target = self._target(at)
        if target <= at:
            # A loop, whose condition stands at its end.
            return any(self._changes[target:at])
        if any(self._changes[at + 1 : target]):
            return True
        last = self._steps[target - 1] if target > at + 1 else None
        if last is None:
            return False
        if last.opname in _LEAVE:
            return any(self._changes[target:])
        end = self._target(target - 1) if "JUMP" in last.opname else 0
        return any(self._changes[target:end]) if end > target else False

    def _is_conditional(self, at: int) -> bool:
        name = self._steps[at].opname
        return "JUMP" in name and "_IF_" in name

    def _target(self, at: int) -> int:
        """The place that a jump leads to."""
        offset = self._steps[at].argval
        places = (place for known, place in self._places.items() if known >= offset)
        # (The target itself may be an instruction that was left out.)
        return min(places, default=len(self._steps))
