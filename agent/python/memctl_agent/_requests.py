"""Requests: a call that serves a model without training it (a `generate`, a step of an engine) ends a step each time.

Guarantees: imports nothing; a library is watched once the program has imported it; of nested calls the outermost
counts; once an optimizer steps, requests are not steps. The wrapped call gets its arguments, and its result and
exception pass unchanged.
Refuses: to know the parts of a request; `memctl_agent.step(number)` marks them exactly.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from memctl_agent._hooks import Hub, like

# Module, class and method whose call is one request, or one round of an engine.
PLACES = (
    ("transformers.generation.utils", "GenerationMixin", "generate"),
    ("vllm.v1.engine.core", "EngineCore", "step"),
    ("vllm.v1.worker.gpu_worker", "Worker", "execute_model"),
    ("vllm.engine.llm_engine", "LLMEngine", "step"),
)

Patch = Callable[[Any, str, Callable[[Any], Any]], None]


class Requests:
    """Watches the libraries that the program has imported by the time of the check."""

    def __init__(self, hub: Hub, patch: Patch, is_compiling: Callable[[], bool]) -> None:
        self._hub, self._patch, self._is_compiling = hub, patch, is_compiling
        self._missing = list(PLACES)

    def look(self) -> None:
        """Wraps what has been imported since the last check."""
        if not self._missing:
            return
        for place in list(self._missing):
            module = sys.modules.get(place[0])
            # A module that is still being imported lacks its class.
            owner = getattr(module, place[1], None)
            if owner is not None:
                self._missing.remove(place)
                self._patch(owner, place[2], self._wrap)

    def _wrap(self, original: Any) -> Any:
        hub, is_compiling = self._hub, self._is_compiling

        def request(*args: Any, **kwargs: Any) -> Any:
            loop = hub.loop
            if loop is None or is_compiling():
                return original(*args, **kwargs)
            outermost = False
            try:
                outermost = loop.request_begins()
            except Exception as fault:
                hub.failed(fault)
            try:
                return original(*args, **kwargs)
            finally:
                if outermost:
                    try:
                        loop.request_ends()
                    except Exception as fault:
                        hub.failed(fault)

        return like(original, request)
