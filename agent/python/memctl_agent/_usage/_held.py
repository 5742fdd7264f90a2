"""Names the Python objects that hold blocks: those that `memctl holders` would name.

Guarantees: nothing raises, and no object of the program is kept.
Refuses: to name holders without the native module, and what C or C++ holds.
"""

from __future__ import annotations

import sys

# Holders of the same blocks that are named.
HOLDERS_MAX = 3


def holders(blocks: list[tuple[int, int]], module: str, budget_ms: float) -> list[str]:
    """Sentences about the Python objects that hold these blocks (address and size). The search begins in `module` and
    takes about `budget_ms` at most."""
    from memctl_agent._session import load_native

    native = load_native()
    if native is None:
        return ["not searched: memctl's native module is missing"]
    if not blocks:
        return ["not searched: the growth is of blocks that replace smaller ones"]
    try:
        from memctl_agent import _holders

        answer = _holders.find(native, blocks, budget_ms, [module] if module in sys.modules else [])
    except Exception as error:
        return [f"not searched: {type(error).__name__}: {error}"]
    sentences = [str(one["sentence"]) for one in answer["holders"][:HOLDERS_MAX]]
    return sentences or ["no Python object was found", *answer["not_looked_at"][:1]]
