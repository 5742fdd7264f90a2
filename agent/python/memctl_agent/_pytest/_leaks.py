"""Compares the allocated blocks before and after a test's body, and names what grew and what holds it.

The comparison is by line: a block that replaces another one of the same line is no growth. The holders are those that
`memctl holders` would name.
Guarantees: reference cycles that the garbage collector frees are no leak.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import Any

from memctl_agent._usage._amounts import human
from memctl_agent._usage._held import holders
from memctl_agent._usage._trace import Key, Line, Site, label

# Lines that a message names, and how long the search for the holders of each may take, in milliseconds.
LINES_MAX = 5
BUDGET_MS = 20_000.0
# How often cycles are collected: a finalizer may make the next ones unreachable.
COLLECTIONS_MAX = 3
# How long autograd's threads get for releasing what they just used, in seconds.
MOMENT_S = 0.01

Blocks = dict[Key, tuple[int, int, Site]]


@dataclass
class Growth:
    """How much more is allocated: in all, and by line, with the blocks of these lines."""

    bytes_: int = 0
    lines: list[Line] = field(default_factory=list)
    blocks: dict[Site, list[tuple[int, int]]] = field(default_factory=dict)


def growth(before: Blocks, after: Blocks, own: set[Key]) -> Growth:
    """The growth from one reading to the next. `own` are the blocks that were allocated between them."""
    sums: dict[Site, Line] = {}
    for sign, blocks in ((-1, before), (1, after)):
        for bytes_, _, site in blocks.values():
            line = sums.setdefault(site, Line(site))
            line.bytes_ += sign * bytes_
            line.blocks += sign
    grown = sorted((line for line in sums.values() if line.bytes_ > 0), key=lambda line: (-line.bytes_, str(line.site)))
    found = Growth(sum(line.bytes_ for line in sums.values()), grown)
    for key, (_, size, site) in after.items():
        if key in own:
            found.blocks.setdefault(site, []).append((key[1], size))
    return found


def settled(read: Any, before: Blocks, limit: int) -> Any:
    """The growth since `before`. If it exceeds the limit, unreachable cycles are collected first, and autograd's
    threads get a moment to release what they just used.

    `read` returns the blocks now and the addresses of those that were allocated since `before`; None if that cannot be
    read.
    """
    found = None
    for turn in range(COLLECTIONS_MAX + 1):
        collected = gc.collect() if turn else 1
        if turn:
            time.sleep(MOMENT_S)
        now = read()
        if now is None:
            return None
        found = growth(before, *now)
        if found.bytes_ <= limit or not collected:
            break
    return found


def described(found: Growth, root: str, module: str) -> list[str]:
    """The lines that grew, and what holds their blocks. The search begins in the test's module."""
    texts = []
    for line in found.lines[:LINES_MAX]:
        blocks = f" in {line.blocks} block{'s' * (line.blocks != 1)}" if line.blocks > 0 else ""
        texts.append(f"{human(line.bytes_):>11}{blocks}  {label(line.site, root)}")
        texts += [f"{'':13}held by: {text}" for text in holders(found.blocks.get(line.site, []), module, BUDGET_MS)]
    if len(found.lines) > LINES_MAX:
        rest = found.lines[LINES_MAX:]
        texts.append(f"{human(sum(line.bytes_ for line in rest)):>11}  {len(rest)} other lines")
    return texts
