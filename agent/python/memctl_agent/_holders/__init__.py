"""Who holds memory: which of the program's objects keep tensors on some blocks of the device alive.

`find` is asked at a step's end, in the trainer, on the thread that ended the step. What lies near the program's modules
and its running functions is looked at first (`_search`, `_frames`), with the autograd graphs that begin there
(`_graph`). For blocks that remain, tensors are looked for among all objects of the interpreter (`_tensors`) and their
holders followed upwards; what nothing reaches may be a cycle (`_cycles`). `_answer` and `_words` say it.

Guarantees: never raises; never runs twice at once; runs none of the program's code; keeps no reference; asks the clock
before every pass over the objects and while it walks. The collector is off meanwhile and afterwards as it was before.
Refuses: to guess. What is held from C or C++ is not found, and the answer says that it was not looked at.
"""

from __future__ import annotations

import _thread
import gc
import sys
from collections.abc import Sequence
from typing import Any, Optional

from memctl_agent._holders import _answer
from memctl_agent._holders._answer import Answer, Found
from memctl_agent._holders._clock import Clock
from memctl_agent._holders._finder import Finder
from memctl_agent._holders._memory import Memory

BLOCKS_MAX = 256

_busy = _thread.allocate_lock()


def find(blocks: Sequence[tuple[int, int]], budget_ms: int) -> dict[str, Any]:
    """Which objects hold the tensors on these blocks (address and bytes, oldest first), as the answer to a question."""
    asked = len(blocks)
    if not _busy.acquire(blocking=False):
        return _answer.empty(asked, ["Nothing was looked at: another search is under way."])
    clock = Clock(budget_ms)
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        return _find(list(blocks[:BLOCKS_MAX]), asked, clock, was_enabled)
    except Exception as fault:
        # Its own text may be the program's.
        return _answer.empty(asked, [f"The search ended with a fault of its own ({type(fault).__name__})."])
    finally:
        if was_enabled:
            gc.enable()
        _busy.release()


def _find(blocks: list[tuple[int, int]], asked: int, clock: Clock, is_collecting: bool) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if getattr(torch, "Tensor", None) is None:
        return _answer.empty(asked, ["Nothing was looked at: torch is not imported."])
    memory = Memory()
    finder: Optional[Finder] = None
    try:
        # Neither subclasses nor modes of the program see what is asked of tensors here.
        with torch._C.DisableTorchFunction():  # type: ignore[union-attr]
            finder = Finder(torch, blocks, clock, memory, is_collecting)
            found = finder.find()
            return _told(finder, found, asked, [size for _, size in blocks], clock)
    finally:
        if finder is not None:
            finder.close()
        memory.close()


def _told(finder: Finder, found: list[Found], asked: int, sizes: list[int], clock: Clock) -> dict[str, Any]:
    answer = Answer(finder.search, finder.frames, finder.torch, finder.tensors.class_ids)
    holders = answer.holders(found, finder.cycles, sizes)
    finder.search.count()
    notes = finder.notes(asked - len(found))
    told = _answer.empty(asked, notes)
    told["found_blocks"] = len(found)
    told["objects"] = finder.search.looked_at
    told["complete"] = finder.is_complete
    told["holders"] = holders
    told["took_ms"] = round(clock.took_ms, 3)
    return told
