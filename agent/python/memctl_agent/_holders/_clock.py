"""The time a search may take.

Guarantees: what is measured once, the time that a pass over all objects takes, decides whether another fits.
Refuses: to stop anything; whoever works asks.
"""

from __future__ import annotations

import sys
import time

# What a pass took per block of memory that the interpreter has handed out, until one was measured.
PASS_NS_PER_BLOCK = 20.0
# Passes do not take the same time each; one that compares with more objects takes longer.
MARGIN = 1.3
# A share of the budget that is counted as work ends here at the latest, however long something else had the processor.
WORK_ENDS = 0.9
# A measured time that prevents passes is believed so much less each time.
FORGETS = 0.8


class Clock:
    """Counts from its making."""

    # Measured by the last search of this process.
    pass_ns_per_block = PASS_NS_PER_BLOCK

    def __init__(self, budget_ms: float) -> None:
        self._began = time.perf_counter_ns()
        self._worked = time.thread_time_ns()
        self._budget_ns = budget_ms * 1e6
        # Pools of blocks are counted, not objects: it takes a fraction of a millisecond.
        self._blocks = sys.getallocatedblocks()
        self._pass_ns = Clock.pass_ns_per_block * self._blocks
        self.ran_out = False

    @property
    def took_ms(self) -> float:
        """Since it began."""
        return (time.perf_counter_ns() - self._began) / 1e6

    def left_ms(self) -> float:
        """Until the budget is spent."""
        return self._budget_ns / 1e6 - self.took_ms

    def is_left(self, share: float = 1.0) -> bool:
        """Whether less than this share of the budget is spent."""
        if self.took_ms * 1e6 < share * self._budget_ns:
            return True
        self.ran_out = self.ran_out or share == 1.0
        return False

    def is_work_left(self, share: float) -> bool:
        """Whether this thread itself has worked for less than this share of the budget."""
        worked = time.thread_time_ns() - self._worked
        return worked < share * self._budget_ns and self.is_left(WORK_ENDS)

    def fits_a_pass(self, is_wanted: bool = True) -> bool:
        """Whether a pass over all objects would end in time; where it is wanted and would not, time has run out."""
        fits = self._pass_ns * MARGIN < self.left_ms() * 1e6
        if is_wanted and not fits:
            self.ran_out = True
            # It may have been measured while the machine did something else: a later search tries again.
            Clock.pass_ns_per_block *= FORGETS
        return fits

    def passed(self, began_ms: float) -> None:
        """A pass that began then has ended now."""
        self._pass_ns = (self.took_ms - began_ms) * 1e6
        Clock.pass_ns_per_block = self._pass_ns / max(1, self._blocks)
