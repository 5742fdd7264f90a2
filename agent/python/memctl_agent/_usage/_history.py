"""Records the allocator's events while a test or a cell of a notebook runs, by PyTorch's own memory history.

The history does not touch the allocator's counters: a test that resets and reads its own peaks gets the same results.
It exists once per process. If the test uses it as well, the test has precedence and `reason` says so. What is said of
a test here goes for a cell, too.
Guarantees: CUDA is never initialised here; if a test initialises it, recording begins within that call. No exception
leaves. At the end, nothing of this is left in torch.
Refuses: allocators without events, torch without CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

from memctl_agent import _torch

# Events per device and test. A reading of as many takes about 1 GiB of host memory and 10 s.
EVENTS_MAX = 1_000_000

# Events that are of no use here. torch can leave them out from 2.11 on.
_UNUSED = ["free_completed", "segment_alloc", "segment_free", "snapshot"]

# The functions that switch PyTorch's history on and off.
_SWITCHES = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")

ON_ALREADY = "the program records PyTorch's memory history itself"


@contextlib.contextmanager
def _without_inductor(torch: Any) -> Iterator[None]:
    """Keeps a snapshot from importing `torch._inductor`, which takes seconds and would be seen by the tests.

    To explain frames of compiled code, a snapshot reads the attribute `torch._inductor`, which imports the module. If
    nothing has imported it, there are no such frames.
    """
    lazy = getattr(torch, "_lazy_modules", None)
    if not isinstance(lazy, set) or "_inductor" not in lazy or "torch._inductor" in sys.modules:
        yield
        return
    lazy.discard("_inductor")
    try:
        yield
    finally:
        lazy.add("_inductor")


class History:
    """PyTorch's memory history, on for one test at a time. `reason` says why there is none. `subject` is the noun for
    what is measured: `test` or `cell`."""

    def __init__(self, subject: str = "test") -> None:
        self._subject = subject
        self._taken = f"the {subject} records PyTorch's memory history itself"
        self.reason: Optional[str] = None
        # Counts beginnings: an index into the events is valid for one of them.
        self.turn = 0
        self._torch: Any = None
        self._is_wanted = self._is_on = self._is_own_call = False
        self._waits_in: Optional[int] = None
        # Counted once, because that may take milliseconds.
        self._devices: Optional[int] = None
        self._originals: dict[str, tuple[Any, Any]] = {}

    @property
    def is_on(self) -> bool:
        """Whether events are recorded now, and PyTorch's history is still ours."""
        return self._is_on and self.reason is None

    def begin(self, may_import: bool = True) -> None:
        """Begins to record: at once, or when CUDA is initialised. Without `may_import`, torch is not imported for it; a
        test that imports torch and uses CUDA at once is then not measured."""
        self.end()
        self.turn += 1
        self.reason = None
        try:
            self._torch = torch = self._import() if may_import or "torch" in sys.modules else None
            if torch is None:
                return
            self._is_wanted = True
            if torch.cuda.is_initialized():
                self._start()
            elif self._waits_in != os.getpid():
                self._waits_in = os.getpid()
                torch.cuda._lazy_call(functools.partial(self._cuda_is_there, os.getpid()))
        except Exception as error:
            self.reason = f"{type(error).__name__}: {error}"

    def _import(self) -> Any:
        try:
            import torch  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            self.reason = "torch is not installed" if error.name == "torch" else f"torch cannot be imported ({error})"
            return None
        except Exception as error:
            self.reason = f"torch cannot be imported ({type(error).__name__}: {error})"
            return None
        if not _torch.has_cuda(torch):
            self.reason = "torch was built without CUDA"
            return None
        return torch

    def _cuda_is_there(self, pid: int) -> None:
        """CUDA has been initialised. A forked child is not measured."""
        if pid != os.getpid():
            return
        self._waits_in = None
        if self._is_wanted and not self._is_on:
            try:
                self._start()
            except Exception as error:
                self.reason = f"{type(error).__name__}: {error}"

    def _start(self) -> None:
        torch = self._torch
        hookable = _torch.hookable(torch)
        if hookable.level != "full":
            self.reason = hookable.why
        elif torch._C._cuda_isHistoryEnabled():
            self.reason = ON_ALREADY
        else:
            self._watch()
            self._switch_on()
            self._is_on = True

    def _switch_on(self) -> None:
        settings: dict[str, Any] = {"context": "alloc", "stacks": "python", "max_entries": EVENTS_MAX}
        if "skip_actions" in inspect.signature(self._torch.cuda.memory._record_memory_history).parameters:
            settings["skip_actions"] = _UNUSED
        self._switch("all", **settings)

    def _switch(self, enabled: Optional[str], **settings: Any) -> None:
        self._is_own_call = True
        try:
            self._torch.cuda.memory._record_memory_history(enabled, **settings)
        finally:
            self._is_own_call = False

    def _watch(self) -> None:
        """Notices if the test switches the history."""
        for name in _SWITCHES:
            original = getattr(self._torch._C, name, None)
            if original is not None:
                wrapper = self._noticing(original)
                self._originals[name] = original, wrapper
                setattr(self._torch._C, name, wrapper)

    def _noticing(self, original: Any) -> Any:
        @functools.wraps(original)
        def switch(*args: Any, **kwargs: Any) -> Any:
            if not self._is_own_call and self._is_on:
                self.reason = self._taken
            return original(*args, **kwargs)

        return switch

    def restart(self) -> None:
        """Forgets the events so far. The lines of blocks stay known."""
        self.turn += 1
        if self.is_on:
            self._switch(None)
            self._switch_on()

    def read(self) -> Optional[dict[str, Any]]:
        """The events and the blocks of all devices. None if nothing was recorded; `reason` says why, if there is a
        reason other than that CUDA is not in use."""
        if not self.is_on:
            return None
        try:
            with _without_inductor(self._torch):
                found = self._torch.cuda.memory._snapshot()
        except Exception as error:
            self.reason = f"PyTorch's memory history cannot be read ({type(error).__name__}: {error})"
            return None
        if any(len(trace) >= EVENTS_MAX for trace in found["device_traces"]):
            self.reason = f"the {self._subject} has more than {EVENTS_MAX:,} allocator events on a device"
            return None
        return found

    def why_nothing(self) -> Optional[str]:
        """The reason why nothing can be measured, after a test; None if it could be."""
        if self.reason is not None:
            return self.reason
        torch = self._torch or sys.modules.get("torch")
        try:
            if torch is None or not _torch.has_cuda(torch):
                return None
            if torch.cuda.is_initialized():
                return None if self._torch is not None else f"the {self._subject} imported torch itself"
            if self._devices is None:
                self._devices = int(torch.cuda.device_count())
        except Exception as error:
            return f"no CUDA device ({type(error).__name__}: {error})"
        return None if self._devices else "no CUDA device"

    def end(self) -> None:
        """Stops recording. If the test uses the history, it stays as the test left it."""
        self._is_wanted = False
        if self._is_on:
            try:
                if self.reason != self._taken:
                    self._switch(None)
            except Exception as error:
                self.reason = f"{type(error).__name__}: {error}"
            self._is_on = False
        for name, (original, wrapper) in self._originals.items():
            if getattr(self._torch._C, name, None) is wrapper:
                setattr(self._torch._C, name, original)
        self._originals.clear()
