"""Describes the holders of blocks without a chain: cycles, paths upwards that end before a root, and C++ as the only
holder.

Guarantees: this module uses only notes that were taken while objects were visited, and no objects. Blocks whose tensors
may have referrers are left out, unless their own graph shows why they are live.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from memctl_agent._holders import _answer, _facts

# Maximum number of steps of a path upwards that are described.
STEPS_MAX = 11


# The key of blocks for which the whole heap has no Python object. Only C++ can hold them, unless the program replaced
# their tensors during the search. Such a program replaces some of a line's tensors, so a few such blocks say nothing.
_UNSEEN = ("unseen", "", "")


@dataclass
class Loose:
    """Facts about tensors to which no chain leads."""

    # For each block, the addresses of the tensors on it; and the pattern that explains why C++ holds it.
    tensors: dict[int, list[int]] = field(default_factory=dict)
    patterns: dict[int, str] = field(default_factory=dict)
    # Blocks whose tensors only C++ holds, according to the reference counts.
    alone: set[int] = field(default_factory=set)
    # Blocks that were freed meanwhile: tensors of other sizes are at their addresses.
    taken: set[int] = field(default_factory=set)
    # For each address of an object, the addresses and descriptions of its referrers; and the words for the cycle that
    # it is in.
    above: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    cycles: dict[int, str] = field(default_factory=dict)
    # Whether the referrers of all tensors were searched among all objects.
    are_holders_seen: bool = False
    # Whether the graphs of all tensors with a chain were walked.
    are_graphs_seen: bool = False

    def count(self) -> int:
        """The number of known tensors."""
        return sum(map(len, self.tensors.values()))

    def have_tensors(self, missing: set[int]) -> bool:
        """Whether for each of these blocks a tensor or a pattern is known."""
        return all(block in self.patterns or block in self.tensors for block in missing)

    def are_explained(self, missing: set[int]) -> bool:
        """Whether it is known for each of these blocks why it is live."""
        return all(block in self.patterns or block in self.alone or self._cycle(block) for block in missing)

    def _cycle(self, block: int) -> str:
        """The cycle of a block's tensor, in words; empty if there is none."""
        return next((self.cycles[at] for at in self.tensors.get(block, ()) if at in self.cycles), "")

    def entries(self, missing: set[int], is_whole: bool, sizes: list[int], collector: str) -> list[dict[str, Any]]:
        """The holders. `is_whole` is whether all tensors of the heap were seen."""
        groups: dict[tuple[str, str, str], list[int]] = {}
        for block in missing:
            key = self._key(block, is_whole)
            if key is not None:
                groups.setdefault(key, []).append(block)
        unseen = groups.pop(_UNSEEN, [])
        if 2 * len(unseen) >= len(missing):
            groups.setdefault(("cpp", "", ""), []).extend(unseen)
        alone = groups.pop(("cpp", "", ""), [])
        if alone:
            # All blocks of the site that only C++ holds form one group. If the reason is known for some of them, the
            # group has this reason.
            known = next((key for key in groups if key[0] == "cpp"), ("cpp", "", ""))
            groups.setdefault(known, []).extend(alone)
        return [_entry(*key, blocks, sizes, collector) for key, blocks in groups.items()]

    def _key(self, block: int, is_whole: bool) -> Optional[tuple[str, str, str]]:
        """The kind of a block's holder, its words, and its pattern."""
        ids = self.tensors.get(block, [])
        pattern = self.patterns.get(block, "")
        if pattern == "create_graph" or (self.are_graphs_seen and (pattern or block in self.alone)):
            return "cpp", "", pattern
        # (References were counted, so a cycle is certain even if the search is incomplete.)
        cycle = self._cycle(block)
        if cycle:
            return "cycle", cycle, ""
        if not is_whole or (block in self.taken and not ids):
            return None
        above = next((self.above[at] for at in ids if self.above.get(at)), [])
        if above:
            return "object", self._words(above), ""
        return _UNSEEN if self.are_graphs_seen and (self.are_holders_seen or not ids) else None

    def _words(self, above: list[tuple[int, str]]) -> str:
        """The path upwards, as far as it is known."""
        steps: list[str] = []
        seen: set[int] = set()
        while above and above[0][0] not in seen:
            identity, words = above[0]
            seen.add(identity)
            steps.append(words)
            above = self.above.get(identity, [])
        return " in ".join(steps[:STEPS_MAX])


def _entry(kind: str, words: str, pattern: str, blocks: list[int], sizes: list[int], collector: str) -> dict[str, Any]:
    if kind == "cycle":
        why = {"off": "is disabled", "rare": "hardly ever runs"}.get(collector, "has not run since")
        sentence = f"an unreachable cycle of {words}: the garbage collector {why}"
        facts = _facts.Facts(_facts.CYCLE, words)
        holder = _answer.entry("cycle", sentence, ["unreachable cycle", "Tensor"], blocks, sizes, facts)
        holder["collector"] = collector
        return holder
    if kind == "object":
        steps = words.split(" in ")
        facts = _facts.Facts(_facts.OBJECT, steps[0])
        sentence = f"{words}; what holds it was not found"
        return _answer.entry("object", sentence, [*reversed(steps), "Tensor"], blocks, sizes, facts)
    sentence = "C++ alone, PyTorch's or an extension's: no Python object refers to them"
    if pattern == "create_graph":
        sentence = (
            "PyTorch's autograd alone: parameters and gradients that have graphs hold each other, as "
            "`backward(create_graph=True)` makes them; no Python object refers to them"
        )
    if pattern == "autocast_cache":
        sentence = (
            "PyTorch's autocast alone: it is on and was not left, and until then its cache keeps a copy of each weight "
            "that it has converted, and the weight; no Python object refers to them"
        )
    holder = _answer.entry("cpp", sentence, [], blocks, sizes, _facts.Facts(_facts.CPP, ""))
    holder["pattern"] = pattern or None
    return holder
