"""The book records which epoch, step, phases and regions are open, and which source began them.

Guarantees: every end that is written has a begin. For each kind of range, explicit marks take precedence over
annotations, and annotations take precedence over guesses. Nothing is written while there is no session. Open ranges are
written when a session starts.
Refuses: to guess. It does not depend on torch or on the training loop (`_loop` does), holds no lock and never blocks.
"""

from __future__ import annotations

from typing import Callable, Optional

# Mark kinds of the native module.
EPOCH_BEGIN, EPOCH_END, STEP_BEGIN, STEP_END, PHASE_BEGIN, PHASE_END, REGION_BEGIN, REGION_END, NOTE = range(1, 10)
# The end of an epoch that has the state of the last end of a step or of an evaluation.
EPOCH_ENDED = 10
# Gradients were freed. If the program ends here, this is the state after its last step.
SETTLED = 11

# The model's numbers of phases.
TRAIN, EVAL, FORWARD, BACKWARD, OPTIMIZER = range(1, 6)
PHASES = {"train": TRAIN, "eval": EVAL, "forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}

# Sources of marks. For each kind of range, a higher source makes lower ones ineffective.
AUTO, NAMED, HAND = 1, 2, 3

# An epoch is a u32 in the model, a step a u64.
EPOCH_MAX = 2**32 - 1
STEP_MAX = 2**64 - 1
# Longer names are truncated. A tensor's repr as a name then costs little.
NAME_CHARS_MAX = 200
# Maximum number of regions from annotations in one step. Libraries annotate every layer, which is of no use as marks.
REGIONS_PER_STEP_MAX = 64
# Maximum number of open regions. Ranges that are entered repeatedly without an exit must not fill the book.
OPEN_REGIONS_MAX = 256
# The annotations of steps count as finished after this many steps of an optimizer without an annotated step. For
# example, a profiler may have run for a few steps.
LAPSE_STEPS = 8

Emit = Callable[[int, int, str], object]


class Book:
    """The open ranges, and the marks for them."""

    def __init__(self) -> None:
        self._emit: Optional[Emit] = None
        self._before_end: Optional[Callable[[bool], None]] = None
        self._rank = {"epoch": 0, "step": 0, "mode": 0, FORWARD: 0, BACKWARD: 0, OPTIMIZER: 0}
        self.epoch: Optional[int] = None
        self.step: Optional[int] = None
        self.next_epoch = 0
        self.next_step = 0
        # The open phases, each with the source that began it: train or eval, and within it forward, backward or
        # optimizer.
        self.mode: Optional[tuple[int, int]] = None
        self.part: Optional[tuple[int, int]] = None
        self._regions: list[str] = []
        self._regions_of_step = 0
        self._unnamed_steps = 0
        # Whether the program has epochs: it named one, iterates over a loader, or began a second one. A program with
        # neither spends all its time in epoch 0, which says nothing about it.
        self.has_epochs = False
        # Whether a backward pass or an optimizer ran since the epoch and the step began.
        self.epoch_worked = False
        self.step_worked = False

    # -- the session ---------------------------------------------------------------------------------------

    def open(self, emit: Emit, before_end: Optional[Callable[[bool], None]] = None) -> None:
        """A session takes marks from now on. Writes the open ranges, and epoch 0 if none is known.

        `before_end` runs just before a step's (False) or an epoch's (True) end is written.
        """
        self._emit, self._before_end = emit, before_end
        if self.epoch is None and not self._rank["epoch"]:
            self.epoch_begin(self.next_epoch, AUTO)
        elif self.epoch is not None:
            emit(EPOCH_BEGIN, self.epoch, "")
        if self.step is not None:
            emit(STEP_BEGIN, self.step, "")
        for phase in (self.mode, self.part):
            if phase is not None:
                emit(PHASE_BEGIN, phase[0], "")
        for name in self._regions:
            emit(REGION_BEGIN, 0, name)

    def close(self, failed: bool) -> None:
        """Ends the open ranges. After a failure, epoch and step stay open, because they did not reach their end."""
        for name in reversed(self._regions):
            self._write(REGION_END, 0, name)
        self._regions.clear()
        self._part_over()
        if not failed and self.step is not None and self._rank["step"] > AUTO:
            self._step_over()
        # Whether the epoch's end is explicit, or the session reads its state at ends and has no earlier state.
        ends_now = self._rank["epoch"] > AUTO or self._before_end is not None
        if not failed and self.epoch is not None and not ends_now:
            # This is not marked as a normal end: the program is ending and has already freed its memory. The end of an
            # evaluation would replace the state that counts, so it comes afterwards.
            self._write(EPOCH_ENDED, self.epoch)
            self.epoch = None
        self._mode_over()
        if not failed and self.epoch is not None:
            self._epoch_over()
        self._emit = self._before_end = None

    def _write(self, kind: int, number: int = 0, name: str = "") -> None:
        if self._emit is not None:
            self._emit(kind, number, name)

    # -- epochs --------------------------------------------------------------------------------------------

    def _speaks(self, kind: object, source: int) -> bool:
        """Whether this source may mark that kind of range. If so, lower sources may not from now on."""
        if source < self._rank[kind]:  # type: ignore[index]
            return False
        self._rank[kind] = source  # type: ignore[index]
        return True

    def epoch_begin(self, number: int, source: int) -> bool:
        """Begins an epoch and ends the previous one.

        An automatic epoch without training so far is not ended. It was the time before the first named epoch and
        becomes a part of that one.
        """
        automatic = self._rank["epoch"] <= AUTO
        if not self._speaks("epoch", source):
            return False
        if self.epoch is not None:
            if automatic and not self.epoch_worked:
                if number == self.epoch:
                    self.has_epochs = self.has_epochs or source > AUTO
                    return True
            else:
                self._epoch_over()
        self.has_epochs = self.has_epochs or source > AUTO or self.next_epoch > 0
        self.epoch, self.next_epoch, self.epoch_worked = number, number + 1, False
        self._write(EPOCH_BEGIN, number)
        if self.step is not None and not self.step_worked:
            # A step that has not done anything yet belongs to the new epoch.
            self._write(STEP_BEGIN, self.step)
        return True

    def epoch_end(self, number: int, source: int) -> bool:
        """Ends this epoch if it is the open one."""
        if self.epoch != number or not self._speaks("epoch", source):
            return False
        self._epoch_over()
        return True

    def _epoch_over(self) -> None:
        if self.epoch is None:
            return
        if self._before_end is not None:
            self._before_end(True)
        self._write(EPOCH_END, self.epoch)
        self.epoch = None

    def settled(self) -> None:
        """Marks that gradients were freed."""
        self._write(SETTLED)

    # -- steps ---------------------------------------------------------------------------------------------

    def step_begin(self, number: Optional[int], source: int) -> bool:
        """Begins a step (the next one if no number is given). Ends the previous step if anything was trained in it."""
        automatic = self._rank["step"] <= AUTO
        if not self._speaks("step", source):
            return False
        self._unnamed_steps = 0
        number = self.next_step if number is None else number
        if self.step is not None and (self.step_worked or not automatic):
            self._step_over()
        self.step, self.next_step, self.step_worked = number, number + 1, False
        self._regions_of_step = 0
        self._write(STEP_BEGIN, number)
        return True

    def step_again(self) -> None:
        """Restarts the open automatic step if nothing was trained in it, because earlier work does not belong to it."""
        if self.step is not None and not self.step_worked and self._rank["step"] <= AUTO:
            self._write(STEP_BEGIN, self.step)

    def step_end(self, source: int, number: Optional[int] = None) -> bool:
        """Ends the open step. With a number, ends it only if it has that number."""
        if source < self._rank["step"]:
            self._lapse()
            return False
        if self.step is None or number not in (None, self.step):
            return False
        self._rank["step"] = source
        self._step_over()
        return True

    def _step_over(self) -> None:
        if self.step is None:
            return
        if self._before_end is not None:
            self._before_end(False)
        self._write(STEP_END, self.step)
        self.step = None

    def _lapse(self) -> None:
        """An optimizer stepped without the expected annotation. After several such steps the annotations count as
        finished."""
        if self._rank["step"] != NAMED or self.step is not None:
            return
        self._unnamed_steps += 1
        if self._unnamed_steps >= LAPSE_STEPS:
            self._rank["step"] = AUTO

    def worked(self) -> None:
        """A backward pass or an optimizer ran."""
        self.epoch_worked = self.step_worked = True

    # -- phases --------------------------------------------------------------------------------------------

    def mode_begin(self, phase: int, source: int) -> bool:
        """Begins training or evaluation. Ends the other one, with the part that is open in it."""
        if not self._speaks("mode", source):
            return False
        if self.mode is not None and self.mode[0] == phase:
            self.mode = (phase, source)
            return True
        if self.part is not None and self.part[1] <= source:
            self._part_over()
        self._mode_over()
        self.mode = (phase, source)
        self._write(PHASE_BEGIN, phase)
        return True

    def mode_end(self, phase: int, source: int) -> bool:
        """Ends training or evaluation if it is the open one."""
        if self.mode is None or self.mode[0] != phase or not self._speaks("mode", source):
            return False
        self._mode_over()
        return True

    def _mode_over(self) -> None:
        if self.mode is not None:
            self._write(PHASE_END, self.mode[0])
            self.mode = None

    def part_begin(self, phase: int, source: int) -> bool:
        """Begins forward, backward or optimizer. Ends the previous part, unless a higher source began it."""
        if self.part is not None and source < self.part[1]:
            return False
        if not self._speaks(phase, source):
            return False
        if self.part is not None:
            if self.part[0] == phase:
                self.part = (phase, source)
                return True
            self._part_over()
        self.part = (phase, source)
        self._write(PHASE_BEGIN, phase)
        return True

    def part_end(self, phase: int, source: int) -> bool:
        """Ends this part if it is the open one and no higher source began it."""
        if self.part is None or self.part[0] != phase or source < self.part[1]:
            return False
        self._part_over()
        return True

    def _part_over(self) -> None:
        if self.part is not None:
            self._write(PHASE_END, self.part[0])
            self.part = None

    # -- regions and notes -----------------------------------------------------------------------------------

    def region_begin(self, name: str, source: int) -> bool:
        """Begins a region. The number of regions from annotations is limited for each step."""
        if len(self._regions) >= OPEN_REGIONS_MAX:
            return False
        if source < HAND:
            if self._regions_of_step >= REGIONS_PER_STEP_MAX:
                return False
            self._regions_of_step += 1
        name = name[:NAME_CHARS_MAX]
        self._regions.append(name)
        self._write(REGION_BEGIN, 0, name)
        return True

    def region_end(self, name: str) -> bool:
        """Ends the innermost open region of that name."""
        name = name[:NAME_CHARS_MAX]
        for place in range(len(self._regions) - 1, -1, -1):
            if self._regions[place] == name:
                del self._regions[place]
                self._write(REGION_END, 0, name)
                return True
        return False

    def note(self, text: str) -> None:
        """Records a one-time event."""
        self._write(NOTE, 0, text[:NAME_CHARS_MAX])
