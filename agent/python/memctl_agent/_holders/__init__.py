"""Who holds memory: which of the program's objects keep tensors on some blocks of the device alive.

A search (`_search`) is cut into slices of a few milliseconds. It begins where leaks live: globals of the program's
modules, variables of running functions (`_roots`, `_frames`), graphs that begin there (`_graph`); for blocks that
remain it goes over the heap (`_heap`), for tensors and for what refers to them, and what nothing reaches may be a cycle
(`_cycles`) or held by C++ alone (`_cpp`). The native module follows references. `_answer`, `_words` and `_facts` say
it.

Guarantees: never raises; runs none of the program's code; between two slices it holds none of the program's objects.
The collector is off within a slice and afterwards as it was.
Refuses: to guess. What is held from C or C++ is not found, and the answer says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

BLOCKS_MAX = 256
# The parts of this package, each behind those that it imports.
_PARTS = (
    *("reading", "memory", "tensors", "frames", "facts", "roots", "words", "grouping"),
    *("answer", "loose", "graph", "cycles", "cpp", "slice", "heap"),
)


def load(rest: Callable[[], object]) -> None:
    """Imports the parts one by one, and rests in between: all of them together would take dozens of milliseconds."""
    for part in (*_PARTS, "search"):
        importlib.import_module(f"memctl_agent._holders._{part}")
        rest()


def begin(native: Any, blocks: Sequence[tuple[int, int]], budget_ms: float) -> Any:
    """A search for what holds the tensors on these blocks (address and bytes, oldest first)."""
    from memctl_agent._holders._search import Search

    return Search(native, blocks[:BLOCKS_MAX], len(blocks), budget_ms)


def find(native: Any, blocks: Sequence[tuple[int, int]], budget_ms: float) -> dict[str, Any]:
    """The answer, slice after slice without a rest."""
    search = begin(native, blocks, budget_ms)
    while search.answer is None:
        search.slice()
    return search.answer
