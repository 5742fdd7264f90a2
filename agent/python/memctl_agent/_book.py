"""The book records which epoch, step, phases and regions are open, and which source began each of them.

Guarantees: every end that is written has a begin. For each kind of range, explicit marks take precedence over
annotations, and annotations take precedence over automatic marks. Nothing is written while there is no session. When a
session starts, the open ranges are written.
The book does not infer marks (`_loop` does). It does not depend on torch, holds no lock and never blocks.
"""

from __future__ import annotations

from typing import Callable, Optional

# Mark kinds of the native module.
EPOCH_BEGIN, EPOCH_END, STEP_BEGIN, STEP_END, PHASE_BEGIN, PHASE_END, REGION_BEGIN, REGION_END, NOTE = range(1, 10)
# The end of an epoch whose state is that of the last end of a step, of a loader or of an evaluation.
EPOCH_ENDED = 10
# Gradients were freed, or a loader is exhausted. If the program ends here, this is the state after its last step.
SETTLED = 11

# The numbers of phases in memctl's model.
TRAIN, EVAL, FORWARD, BACKWARD, OPTIMIZER = range(1, 6)
PHASES = {"train": TRAIN, "eval": EVAL, "forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}

# Sources of marks. For each kind of range, marks of a higher source disable marks of lower sources.
AUTO, NAMED, HAND = 1, 2, 3

# An epoch is a u32 in the model, a step a u64.
EPOCH_MAX = 2**32 - 1
STEP_MAX = 2**64 - 1
# Longer names are truncated, so a long name, such as the text of a tensor, costs little.
NAME_CHARS_MAX = 200
# Maximum number of regions from annotations in one step. Libraries annotate every layer, and such regions are not
# useful.
REGIONS_PER_STEP_MAX = 64
# Maximum number of open regions. A program may enter ranges repeatedly and never leave them.
OPEN_REGIONS_MAX = 256
# After this many steps of an optimizer without an annotated step, automatic marks of steps begin again. For example, a
# profiler may have annotated only a few steps.
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
        # The open phases, each with the source that began it: `mode` is train or eval, and `part` is forward, backward
        # or optimizer within it.
        self.mode: Optional[tuple[int, int]] = None
        self.part: Optional[tuple[int, int]] = None
        self._regions: list[str] = []
        self._regions_of_step = 0
        self._unnamed_steps = 0
        # Whether the program has epochs: it named one, iterates over a loader, or began a second epoch. Otherwise the
        # program spends all its time in epoch 0, and this epoch has no meaning.
        self.has_epochs = False
        # Whether a backward pass or an optimizer ran since the epoch and the step began.
        self.epoch_worked = False
        self.step_worked = False

    # -- the session ---------------------------------------------------------------------------------------

    def open(self, emit: Emit, before_end: Optional[Callable[[bool], None]] = None) -> None:
        """Begins to pass marks to a session. Writes the open ranges, and epoch 0 if no epoch is known.

        `before_end` runs just before the end of a step (False) or of an epoch (True) is written.
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
        """Ends the open ranges. After a failure, the epoch and the step stay open, because they did not reach their
        end."""
        for name in reversed(self._regions):
            self._write(REGION_END, 0, name)
        self._regions.clear()
        self._part_over()
        # A session that reads its state at ends has no earlier state.
        if not failed and self.epoch is not None and self._before_end is None:
            # The program is ending and has already freed its memory, so the present state is not that of the epoch's
            # end. Open ranges end after this mark, because their ends would replace the state that counts.
            self._write(EPOCH_ENDED, self.epoch)
            self.epoch = None
        if not failed and self.step is not None and self._rank["step"] > AUTO:
            self._step_over()
        self._mode_over()
        if not failed and self.epoch is not None:
            self._epoch_over()
        self._emit = self._before_end = None

    def _write(self, kind: int, number: int = 0, name: str = "") -> None:
        if self._emit is not None:
            self._emit(kind, number, name)

    # -- epochs --------------------------------------------------------------------------------------------

    def _speaks(self, kind: object, source: int) -> bool:
        """Whether this source may mark this kind of range. If so, lower sources may not mark it from now on."""
        if source < self._rank[kind]:  # type: ignore[index]
            return False
        self._rank[kind] = source  # type: ignore[index]
        return True

    def epoch_begin(self, number: int, source: int) -> bool:
        """Begins an epoch and ends the previous one.

        If nothing was trained in an automatic epoch, it is not ended. It was the time before the first named epoch, and
        it becomes a part of that epoch.
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
            # If nothing was done in the open step yet, the step belongs to the new epoch.
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
        """Writes a mark: gradients were freed, or a loader is exhausted."""
        self._write(SETTLED)

    # -- steps ---------------------------------------------------------------------------------------------

    def step_begin(self, number: Optional[int], source: int) -> bool:
        """Begins a step (the next one if no number is given). Ends the previous step if something was trained in it."""
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
        """Begins the open automatic step again if nothing was trained in it, because earlier work does not belong to
        it."""
        if self.step is not None and not self.step_worked and self._rank["step"] <= AUTO:
            self._write(STEP_BEGIN, self.step)

    def step_end(self, source: int, number: Optional[int] = None) -> bool:
        """Ends the open step. If a number is given, ends the step only if it has this number."""
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
        """Counts a step of an optimizer without an annotated step. After several such steps, automatic marks of steps
        begin again."""
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
        """Begins training or evaluation. Ends the other one, and the part that is open in it."""
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
        """Ends training or evaluation, if it is open."""
        if self.mode is None or self.mode[0] != phase or not self._speaks("mode", source):
            return False
        self._mode_over()
        return True

    def _mode_over(self) -> None:
        if self.mode is not None:
            self._write(PHASE_END, self.mode[0])
            self.mode = None

    def part_begin(self, phase: int, source: int) -> bool:
        """Begins forward, backward or optimizer. Ends the previous part. If a higher source began the previous part,
        nothing changes."""
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
        """Ends this part, if it is open and no higher source began it."""
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
        """Begins a region. In each step, only a limited number of regions from annotations begins."""
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
        """Records a note."""
        self._write(NOTE, 0, text[:NAME_CHARS_MAX])
