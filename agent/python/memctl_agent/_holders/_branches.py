"""Which side of a comparison runs which instructions.

A comparison decides over the instructions between its conditional jump and the target of this jump. If these
instructions end with another jump, the comparison also decides over those between the two targets. If they leave the
function, it also decides over all instructions that follow.
Guarantees: reads instructions only.
"""

from __future__ import annotations

import dis
from typing import Optional

_LEAVE = frozenset(("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"))
# Instructions that may stand between a comparison and its jump.
_BOOL = frozenset(("TO_BOOL", "UNARY_NOT", "COPY"))


class Branches:
    """The sides of a function's comparisons."""

    def __init__(self, steps: list[dis.Instruction]) -> None:
        self._steps = steps
        self._places = {one.offset: at for at, one in enumerate(steps)}

    def decided(self, comparison: int) -> Optional[range]:
        """The instructions over which the comparison at a place decides; None if its value goes elsewhere than into a
        jump."""
        at = comparison + 1
        while at < len(self._steps) and self._steps[at].opname in _BOOL:
            at += 1
        if at >= len(self._steps) or not self._is_conditional(at):
            return None
        target = self._target(at)
        if target <= at:
            # A loop, whose condition stands at its end.
            return range(target, at)
        last = target - 1
        if last > at and self._steps[last].opname in _LEAVE:
            return range(at + 1, len(self._steps))
        end = self._target(last) if last > at and "JUMP" in self._steps[last].opname else 0
        return range(at + 1, max(target, end))

    def _is_conditional(self, at: int) -> bool:
        name = self._steps[at].opname
        return "JUMP" in name and "_IF_" in name

    def _target(self, at: int) -> int:
        """The place that a jump leads to."""
        offset = self._steps[at].argval
        places = (place for known, place in self._places.items() if known >= offset)
        # (The target itself may be an instruction that was left out.)
        return min(places, default=len(self._steps))
