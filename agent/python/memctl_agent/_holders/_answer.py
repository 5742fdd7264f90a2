"""Makes the answer. Blocks whose chains meet in one container become one holder, with the number of the blocks.

Guarantees: an answer has plain strings and numbers, and at most eight holders. Holders are sorted by their blocks, then
by their bytes, then by their sentences.
Does not keep any of the objects that it reads.
"""

from __future__ import annotations

import gc
import types
from itertools import islice
from typing import Any, Optional

from memctl_agent._holders import _facts, _reading, _words
from memctl_agent._holders._frames import Frames
from memctl_agent._holders._grouping import SAVED, Group

VERSION = 2
HOLDERS_MAX = 8
SENTENCE_CHARS_MAX = 600
# Maximum number of sentences about objects that were not searched.
NOTES_MAX = 16
# Maximum number of objects below a container among which tensors are counted.
COUNTED_MAX = 20_000


def empty(asked: int, notes: list[str]) -> dict[str, Any]:
    """The answer when nothing was searched."""
    return {
        "version": VERSION,
        "asked_blocks": asked,
        "found_blocks": 0,
        "objects": 0,
        "took_ms": 0.0,
        "longest_ms": 0.0,
        "slices": 0,
        "complete": False,
        "not_looked_at": [note[:SENTENCE_CHARS_MAX] for note in notes[:NOTES_MAX]],
        "holders": [],
    }


def entry(
    kind: str, sentence: str, chain: list[str], blocks: list[int], sizes: list[int], facts: _facts.Facts
) -> dict[str, Any]:
    """One holder of the answer. `blocks` has the blocks' numbers, because the reader must check that they are still
    live. `subject` and `identity` are the sentence and the chain without counts: they stay the same while it grows."""
    return {
        "kind": kind,
        "sentence": sentence[:SENTENCE_CHARS_MAX],
        "subject": sentence[:SENTENCE_CHARS_MAX],
        "chain": chain,
        "identity": chain,
        "blocks": len(blocks),
        "bytes": sum(sizes[block] for block in blocks),
        "tensors": None,
        "holder": facts.kind,
        "type": facts.type_name,
        "name": None,
        "owner": None,
        "length": facts.length,
        "is_bounded": facts.is_bounded,
        "limit": facts.limit,
        "thread": None,
        "threads": 0,
        "collector": None,
        "pattern": None,
        "numbers": sorted(blocks),
    }


def united(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Unites sibling containers of one name, such as the lists under the keys of a dict. Only together they may show
    the growth."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for number, one in enumerate(entries):
        groups.setdefault(_siblings(one) or (number,), []).append(one)
    return [_union(group) if len(group) > 1 else group[0] for group in groups.values()]


def _siblings(one: dict[str, Any]) -> Optional[tuple[Any, ...]]:
    """What siblings have in common: their chains are equal except for keys."""
    if one["holder"] != _facts.CONTAINER or one["name"] is None or one["length"] is None or one["thread"]:
        return None
    return one["kind"], one["type"], one["name"], one["owner"], one["is_bounded"], one["limit"], *_without_keys(one)


def _without_keys(one: dict[str, Any]) -> list[str]:
    return [step for step in one["identity"] if not step.startswith("key ")]


def _union(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Several siblings as one holder. If each sibling has a bound, the holder's bound is their sum."""
    first, counts = group[0], [one["tensors"] for one in group]
    tensors = None if None in counts else sum(counts)
    length = sum(one["length"] for one in group)
    limit = None if first["limit"] is None else first["limit"] * len(group)
    name = f"{len(group)} {first['kind']}s in `{first['name']}`" + (f" of `{first['owner']}`" if first["owner"] else "")
    many = "" if tensors is None else f", {_words.counted(tensors, 'tensor')}"
    at = next((at for at, step in enumerate(first["chain"]) if step.startswith("key ")), len(first["chain"]) - 2)
    chain = [*first["chain"][:at], f"{len(group)} {first['kind']}s, {_words.counted(length, 'item')}"]
    return {
        **first,
        "sentence": f"{name}{many}"[:SENTENCE_CHARS_MAX],
        "subject": name[:SENTENCE_CHARS_MAX],
        "chain": [*chain, first["chain"][-1]],
        # (The same siblings later may be more of them.)
        "identity": ["siblings", *_without_keys(first)],
        "blocks": sum(one["blocks"] for one in group),
        "bytes": sum(one["bytes"] for one in group),
        "numbers": sorted(number for one in group for number in one["numbers"]),
        "tensors": tensors,
        "length": length,
        "limit": limit,
    }


def about(holder: dict[str, Any], blocks: list[int], sizes: list[int]) -> dict[str, Any]:
    """The same holder, with other blocks."""
    held = sum(sizes[block] for block in blocks)
    return {**holder, "blocks": len(blocks), "bytes": held, "numbers": sorted(blocks)}


class Answer:
    """Describes one holder at a time."""

    def __init__(self, frames: Frames, torch: Any, class_ids: frozenset[int]) -> None:
        self._frames, self._class_ids = frames, class_ids
        self._module: Optional[type] = getattr(getattr(torch, "nn", None), "Module", None)
        # The type of the `ctx` of a function written in Python.
        self._context: Optional[type] = getattr(torch._C, "_FunctionBase", None)
        self._tensor: Optional[type] = getattr(torch._C, "TensorBase", None)

    def chain(self, path: list[Any], root: Any) -> _words.Chain:
        """The chain of a path. The chain can name the edges of the path."""
        return _words.Chain(path, root, self._frames, self._module, self._tensor)

    def entry(self, group: Group, chain: _words.Chain, sizes: list[int]) -> dict[str, Any]:
        """The answer's entry for a group."""
        at = min(group.at, len(chain.path) - 1)
        is_bare = at == len(chain.path) - 1
        tensors = None if is_bare else self._tensors_in(chain.path[at], len(chain.path) - 1 - at)
        kind, sentence = _words.kind_and_sentence(chain, at, tensors)
        subject = _words.kind_and_sentence(chain, at, None)[1] if tensors else sentence
        facts = _kind_of(kind, _facts.of(chain.path, at), chain)
        tail = []
        before, after = self._around(group, kind, chain)
        if group.how:
            tail = ["its graph"] if group.is_of_graph else [group.how]
        if before:
            kind = "autograd"
            facts.kind = _facts.GRAPH
        root = chain.root
        if root is not None and root.thread:
            count = len(group.threads)
            which = root.thread if count == 1 else f"{count} threads, one of them {root.thread}"
            after = f"{after}, of {which}"
        after += chain.aside()
        found = entry(kind, f"{before}{sentence}{after}", chain.steps(tail), group.blocks, sizes, facts)
        found["subject"] = f"{before}{subject}{after}"[:SENTENCE_CHARS_MAX]
        found["identity"] = chain.steps(tail, with_counts=False)
        found["tensors"] = None if kind in ("attribute", "global", "frame") else tensors
        # A graph belongs to a tensor. The tensor's name is not the name of the object that has the tensor.
        found["name"], found["owner"] = chain.name(len(chain.path) - 1 if group.is_of_graph else at)
        if root is not None and root.thread:
            found["thread"], found["threads"] = root.thread, len(group.threads)
        return found

    def _around(self, group: Group, kind: str, chain: _words.Chain) -> tuple[str, str]:
        """What stands before and after the holder's words if autograd holds the blocks; else two empty texts."""
        if group.how:
            among = "" if kind in ("attribute", "global", "frame", "module_buffer") else "the tensors in "
            if group.is_of_graph:
                return f"the graph of {among}", ""
            if group.how.startswith(SAVED):
                return f"the graph of {among}", f" ({group.how})"
            return f"{group.how} of {among}", ""
        context = chain.passes(self._context) if self._context is not None else None
        if context is None:
            return "", ""
        return f"the context of `{_reading.type_name(type(chain.path[context]))}`, reached from ", ""

    def _tensors_in(self, top: Any, levels: int) -> Optional[int]:
        """The number of tensors that are `levels` levels below a container; `None` if there are too many objects to
        count them."""
        if _reading.container(top) is None or _reading.length(top) > COUNTED_MAX:
            return None
        known: dict[int, bool] = {}

        def passes(thing: Any) -> bool:
            at = id(type(thing))
            if at not in known:
                known[at] = _words.is_passable(thing)
            return known[at]

        level: list[Any] = [top]
        for depth in range(levels):
            below: list[Any] = []
            for thing in level:
                below += _referents(thing)
                if len(below) > COUNTED_MAX:
                    return None
            if depth + 1 == levels:
                return sum(map(self._class_ids.__contains__, map(id, map(type, below)))) or None
            level = list(islice(filter(gc.is_tracked, filter(passes, below)), COUNTED_MAX))
        return None


def _referents(thing: Any) -> list[Any]:
    """The referents of an object. For a function, only its own referents count, because many functions share their
    globals and builtins."""
    if type(thing) is not types.FunctionType:
        return gc.get_referents(thing)
    own = (thing.__closure__, thing.__defaults__, thing.__kwdefaults__)
    return [one for one in own if one is not None]


def _kind_of(kind: str, facts: _facts.Facts, chain: _words.Chain) -> _facts.Facts:
    """Reduces the kind of a holder to one of a few kinds."""
    if kind == "module_buffer":
        facts.kind = _facts.MODULE
    elif kind == "frame":
        facts.kind = _facts.FRAME
    elif kind in ("attribute", "global"):
        facts.kind = _facts.VARIABLE
    if facts.kind in (_facts.FRAME, _facts.CONTAINER, _facts.CACHE, _facts.OBJECT):
        root = chain.root
        if root is not None and root.thread:
            facts.kind = _facts.THREAD
    return facts
