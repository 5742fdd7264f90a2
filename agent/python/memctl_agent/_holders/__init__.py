"""Finds the holders of memory: the program's objects that keep tensors on some blocks of the device alive.

A search (`_search`) runs in slices of a few milliseconds. It begins where leaks usually are: globals of the program's
modules and variables of running functions (`_roots`, `_frames`), and the graphs of tensors that it finds there
(`_graph`). For the remaining blocks it searches the heap (`_heap`) for tensors and their referrers. Unreachable tensors
may be in a cycle (`_cycles`), or only C++ may hold them (`_cpp`). The native module follows references. `_answer`,
`_words` and `_facts` describe the result.

Guarantees: nothing raises, and none of the program's code runs. Between two slices the search holds none of the
program's objects. The collector is off within a slice and restored afterwards.
The search does not guess. Holders in C or C++ are not found, and the answer states this.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

BLOCKS_MAX = 256
# The parts of this package. Each part comes after the parts that it imports.
_PARTS = (
    *("reading", "memory", "tensors", "frames", "code_bound", "facts", "roots", "outputs", "words", "grouping"),
    *("answer", "loose", "node", "trail", "graph", "cycles", "cpp", "slice", "heap"),
)


def load(rest: Callable[[], object]) -> None:
    """Imports the parts one by one, and calls `rest` after each. Importing all of them at once would take dozens of
    milliseconds."""
    for part in (*_PARTS, "search"):
        importlib.import_module(f"memctl_agent._holders._{part}")
        rest()


def begin(native: Any, blocks: Sequence[tuple[int, int]], budget_ms: float, first: Sequence[str] = ()) -> Any:
    """A search for the holders of the tensors on these blocks (address and bytes, oldest first). It begins in the
    modules `first` and in the started program."""
    from memctl_agent._holders._search import Search

    return Search(native, blocks[:BLOCKS_MAX], len(blocks), budget_ms, first)


def find(native: Any, blocks: Sequence[tuple[int, int]], budget_ms: float, first: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the slices of a search without pauses and returns the answer. `first` are modules in which it begins."""
    search = begin(native, blocks, budget_ms, first)
    while search.answer is None:
        search.slice()
    return search.answer
