"""Interprets ranges that a program names with `record_function`. Some of them are epochs, steps and phases. Other
ranges are regions or are ignored.

Guarantees: imports of recorded snapshots use the same names, so a live run and its snapshot agree. The end of a range
is written only if its begin was written. Names are remembered up to a limit.
Ranges that libraries open in every step (optimizer, loaders, sharding) are ignored, because there would be too many
marks.
"""

from __future__ import annotations

import threading
from typing import Any, Optional

from memctl_agent._book import BACKWARD, EVAL, FORWARD, NAMED, TRAIN, Book
from memctl_agent._loop import Loop

# Maximum number of distinct names that are remembered, and of ranges that are open at a time. Programs have dozens.
NAMES_MAX = 4096
OPEN_MAX = 4096

EPOCH, STEP, MODE, PART, REGION, WRAPPED_FORWARD, OPTIMIZER_STEP, ZERO_GRAD = range(8)

_MODES = {"train": TRAIN, "validate": EVAL, "validation": EVAL, "evaluation": EVAL}
_PARTS = {"forward": FORWARD, "backward": BACKWARD}
_NUMBERED = {"epoch#": EPOCH, "step#": STEP, "ProfilerStep#": STEP}
# Ranges that torch itself opens around every step, layer or collective.
_INTERNAL = (
    "Optimizer.",
    "enumerate(",
    "DistributedDataParallel.",
    "FullyShardedDataParallel.",
    "FSDP::",
    "Torch-Compiled Region",
    "## ",
    "nccl:",
    "gloo:",
    "c10d::",
    "aten::",
    "autograd::",
    "record_param_comms",
    "CompiledFunction",
    "torch._dynamo",
    "TorchDynamo",
    "Pregraph bytecode",
    "PyTorch ",
)

Meaning = tuple[int, int]


def meaning_of(name: str) -> Optional[Meaning]:
    """The meaning of a name: a kind, and a number or a phase; `None` for a name that is ignored."""
    for prefix, kind in _NUMBERED.items():
        digits = name[len(prefix) :]
        # A number of 18 digits fits a step. `int` of a longer name could take long.
        if name.startswith(prefix) and digits.isascii() and digits.isdecimal() and len(digits) <= 18:
            number = int(digits)
            if kind == STEP or number < 2**32:
                return (kind, number)
    if name in _MODES:
        return (MODE, _MODES[name])
    if name.startswith("eval"):
        return (MODE, EVAL)
    if name in _PARTS:
        return (PART, _PARTS[name])
    if name == "DistributedDataParallel.forward":
        return (WRAPPED_FORWARD, 0)
    if name.startswith("Optimizer.step#"):
        return (OPTIMIZER_STEP, 0)
    if name.startswith("Optimizer.zero_grad#"):
        return (ZERO_GRAD, 0)
    return None if name.startswith(_INTERNAL) else (REGION, 0)


class Annotations:
    """The named ranges of one session."""

    def __init__(self, book: Book, loop: Optional[Loop]) -> None:
        self._book, self._loop = book, loop
        self._meanings: dict[str, Optional[Meaning]] = {}
        # Open ranges by identity. The objects belong to the program and get no attributes.
        self._open: dict[int, tuple[Meaning, str, Optional[int]]] = {}
        self._thread: Optional[int] = None

    def _lookup(self, name: str) -> Optional[Meaning]:
        try:
            return self._meanings[name]
        except KeyError:
            pass
        meaning = meaning_of(name)
        # Each numbered name occurs only once, so these names are not remembered.
        if meaning is None or meaning[0] not in (EPOCH, STEP):
            if len(self._meanings) >= NAMES_MAX:
                self._meanings.clear()
            self._meanings[name] = meaning
        return meaning

    def enter(self, annotation: Any) -> None:
        """A range was entered."""
        name = annotation.name
        meaning = self._lookup(name) if isinstance(name, str) else None
        if meaning is None:
            return
        kind, number = meaning
        if kind == WRAPPED_FORWARD:
            if self._loop is not None:
                self._loop.forward_begins()
            return
        if len(self._open) >= OPEN_MAX:
            return
        former = None if kind != MODE or self._book.mode is None else self._book.mode[0]
        if kind in (OPTIMIZER_STEP, ZERO_GRAD) or self._begin(kind, number, name):
            self._open[id(annotation)] = (meaning, name, former)

    def _begin(self, kind: int, number: int, name: str) -> bool:
        book = self._book
        if self._is_other_thread(kind):
            return False
        if kind == EPOCH:
            return book.epoch_begin(number, NAMED)
        if kind == STEP:
            return book.step_begin(number, NAMED)
        if kind == MODE:
            return book.mode_begin(number, NAMED)
        if kind == PART:
            return book.part_begin(number, NAMED)
        return book.region_begin(name, NAMED)

    def _is_other_thread(self, kind: int) -> bool:
        """Whether this thread's ranges do not count. Only those of one thread count: of the thread that names epochs,
        steps or phases, or else of the first thread that names a range."""
        me = threading.get_ident()
        if self._thread is None or (kind != REGION and self._thread != me and not self._open):
            self._thread = me
        return self._thread != me

    def exit(self, annotation: Any, failed: bool) -> None:
        """A range was left, normally or by an exception."""
        if not self._open:
            return
        entry = self._open.pop(id(annotation), None)
        if entry is None:
            return
        (kind, number), name, former = entry
        if kind == ZERO_GRAD:
            self._book.settled()
            return
        book = self._book
        if kind == EPOCH:
            book.epoch_end(number, NAMED)
        elif kind == STEP:
            book.worked()
            book.step_end(NAMED, number)
        elif kind == MODE:
            # This was an evaluation inside training. Training continues.
            if book.mode_end(number, NAMED) and former is not None and former != number:
                book.mode_begin(former, NAMED)
        elif kind == PART:
            book.part_end(number, NAMED)
        elif kind == REGION:
            book.region_end(name)
        elif failed and self._loop is not None:
            self._loop.optimizer_failed()
