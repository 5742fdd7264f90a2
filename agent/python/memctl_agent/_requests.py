"""Marks the steps of programs that serve a model. In such a program, a request is a step. A request is one call of a
function that runs a model without training it, such as `generate` or a step of an engine.

Guarantees: this module imports no library. A library is watched as soon as the program has imported it. In nested calls
only the outermost call is a request. When an optimizer has stepped, requests no longer count as steps. A wrapped call
gets its arguments unchanged, and its result and exception pass unchanged.
Parts of a request are not marked. A program can mark them with `memctl_agent.step(number)`.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from memctl_agent._hooks import Hub, like

# Module, class and method. Each call of the method is one request, or one round of an engine.
PLACES = (
    ("transformers.generation.utils", "GenerationMixin", "generate"),
    ("vllm.v1.engine.core", "EngineCore", "step"),
    ("vllm.v1.worker.gpu_worker", "Worker", "execute_model"),
    ("vllm.engine.llm_engine", "LLMEngine", "step"),
)

Patch = Callable[[Any, str, Callable[[Any], Any]], None]


class Requests:
    """Watches libraries that the program has imported."""

    def __init__(self, hub: Hub, patch: Patch, is_compiling: Callable[[], bool]) -> None:
        self._hub, self._patch, self._is_compiling = hub, patch, is_compiling
        self._missing = list(PLACES)

    def look(self) -> None:
        """Wraps the methods of libraries that were imported since the last check."""
        if not self._missing:
            return
        for place in list(self._missing):
            module = sys.modules.get(place[0])
            # If the module is still being imported, the class does not exist yet. It is checked again later.
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
