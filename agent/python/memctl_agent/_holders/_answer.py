"""The answer: blocks whose chains meet in one container become one holder with its count.

Guarantees: plain strings and numbers, at most eight holders, most blocks first, then in the order of their sentences.
Refuses: to keep anything it was shown.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Optional

from memctl_agent._holders import _reading, _words
from memctl_agent._holders._frames import Frames
from memctl_agent._holders._search import Search

VERSION = 1
HOLDERS_MAX = 8
SENTENCE_CHARS_MAX = 600
# Sentences about what was not looked at.
NOTES_MAX = 16
# Objects below a container among which tensors are counted.
COUNTED_MAX = 200_000


@dataclass
class Found:
    """A block, the tensor that leads to it, and how, where the tensor does not lie on the block itself."""

    block: int
    tensor: Any
    how: str = ""


@dataclass
class Holder:
    """What becomes one entry of the answer."""

    chain: _words.Chain
    at: int
    how: str
    cycle: str = ""
    blocks: list[int] = field(default_factory=list)


def empty(asked: int, notes: list[str]) -> dict[str, Any]:
    """The answer when nothing was looked at."""
    return {
        "version": VERSION,
        "asked_blocks": asked,
        "found_blocks": 0,
        "objects": 0,
        "took_ms": 0.0,
        "complete": False,
        "not_looked_at": [note[:SENTENCE_CHARS_MAX] for note in notes[:NOTES_MAX]],
        "holders": [],
    }


class Answer:
    """Gathers what was found into holders."""

    def __init__(self, search: Search, frames: Frames, torch: Any, class_ids: frozenset[int]) -> None:
        self._search, self._frames, self._class_ids = search, frames, class_ids
        self._module: Optional[type] = getattr(getattr(torch, "nn", None), "Module", None)
        # What a function written in Python sees as `ctx`.
        self._context: Optional[type] = getattr(torch._C, "_FunctionBase", None)

    def holders(self, found: list[Found], cycles: dict[int, str], sizes: Sequence[int]) -> list[dict[str, Any]]:
        """The entries of the answer. `cycles`: tensors that only an unreachable cycle holds, and its words."""
        chains = [(one, self._chain(one, cycles)) for one in found]
        below: _words.Below = {}
        for _, chain in chains:
            _words.count_below(chain, below)
        groups: dict[tuple[int, str], Holder] = {}
        for one, chain in chains:
            at = _words.gatherer(chain, below)
            cycle = cycles.get(id(one.tensor), "")
            key = (0 if cycle else id(chain.path[at]), one.how + cycle)
            groups.setdefault(key, Holder(chain, at, one.how, cycle)).blocks.append(one.block)
        entries = [self._entry(holder, sizes) for holder in groups.values()]
        entries.sort(key=lambda entry: (-entry["blocks"], -entry["bytes"], entry["sentence"]))
        return entries[:HOLDERS_MAX]

    def _chain(self, one: Found, cycles: dict[int, str]) -> _words.Chain:
        path = self._search.path(id(one.tensor))
        if not path:
            # Nothing leads to it: it begins with the farthest that was found, a neighbour in a cycle.
            path = self._search.loose_path(id(one.tensor))
        root = self._search.root(path[0]) if id(one.tensor) not in cycles else None
        return _words.Chain(path, root, self._frames, self._module)

    def _entry(self, holder: Holder, sizes: Sequence[int]) -> dict[str, Any]:
        chain, at = holder.chain, holder.at
        is_bare = at == len(chain.path) - 1
        tensors = None if is_bare else self._tensors_in(chain.path[at], len(chain.path) - 1 - at)
        kind, sentence = _words.kind_and_sentence(chain, at, tensors)
        tail = []
        context = chain.passes(self._context) if self._context is not None else None
        if holder.how:
            tail = [holder.how]
            among = "" if kind in ("attribute", "global", "frame", "module_buffer") else "the tensors in "
            kind, sentence = "autograd", f"{holder.how}, reached from {among}{sentence}"
        elif context is not None:
            name = _reading.type_name(type(chain.path[context]))
            kind, sentence = "autograd", f"saved in the context of `{name}`, reached from {sentence}"
        if holder.cycle:
            kind, sentence = "cycle", holder.cycle
        elif chain.root is None:
            sentence += "; what holds it was not found"
        return {
            "kind": kind,
            "sentence": sentence[:SENTENCE_CHARS_MAX],
            "chain": chain.steps(tail),
            "blocks": len(holder.blocks),
            "bytes": sum(sizes[block] for block in holder.blocks),
            "tensors": None if kind in ("attribute", "global", "frame") else tensors,
        }

    def _tensors_in(self, top: Any, levels: int) -> Optional[int]:
        """How many tensors are so many levels below a container; none if that is too much to count."""
        if _reading.container(top) is None:
            return None
        level: list[Any] = [top]
        for depth in range(levels):
            below: list[Any] = []
            for thing in level:
                below += gc.get_referents(thing)
                if len(below) > COUNTED_MAX:
                    return None
            if depth + 1 == levels:
                return sum(map(self._class_ids.__contains__, map(id, map(type, below)))) or None
            level = list(islice(filter(self._search.passable, below), COUNTED_MAX))
        return None
