"""What whoever hosts the session asks of this process: which objects hold the tensors on some blocks.

Asked at the end of a step, on the thread that ended it. Guarantees: where nothing is asked it is one call that loads
one word; never two searches at once; nothing raises into the program, and no fault leaves the ask without an answer.
Refuses: to search itself; `_holders` does, and is imported when it is first asked.
"""

from __future__ import annotations

import threading
from typing import Any


class Asked:
    """Answers asks, one at a time."""

    def __init__(self) -> None:
        self._searching = threading.Lock()

    def answer(self, native: Any) -> None:
        """Answers what is asked, if something is. Another thread that searches leaves the next ask to a later step."""
        if not self._searching.acquire(blocking=False):
            return
        try:
            asked = native.holders_asked()
            if asked is not None:
                number, blocks, budget_ms = asked
                native.holders_answer(number, _search(blocks, budget_ms))
        except Exception:
            # The session ended meanwhile; whoever asked stops waiting by itself.
            return
        finally:
            self._searching.release()


def _search(blocks: list[tuple[int, int]], budget_ms: int) -> str:
    """The answer, or in place of it what went wrong, as JSON."""
    import json

    try:
        from memctl_agent import _holders

        return json.dumps(_holders.find(blocks, budget_ms))
    except Exception as fault:
        return json.dumps({"fault": f"{type(fault).__name__}: {fault}"})
