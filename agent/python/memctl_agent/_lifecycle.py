"""Handles the end of a process: a fork, a normal exit, an uncaught exception.

Guarantees: a forked child of an attached process records nothing. At exit the session ends within a time limit. The
previous exception hook still runs. No signal handler is installed, and `threading.excepthook` is not changed.
Does not keep a process alive. Does not report an exit that the program caught as a failure.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from typing import Any, Callable, Optional

# Maximum number of causes of an error that are searched for an out-of-memory error.
CAUSES_MAX = 8
FAILURE_CHARS_MAX = 500


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is torch's error for a full device. This check does not import torch."""
    kinds = type(error).__mro__
    return any(kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch") for kind in kinds)


def describe(error: BaseException) -> str:
    """An error in words: `ValueError: first line`; or `out of memory: first line` if the error or one of its causes is
    this."""
    seen: Optional[BaseException] = error
    for _ in range(CAUSES_MAX):
        if seen is None:
            break
        if is_out_of_memory(seen):
            return _whole_sentences(f"out of memory: {_first_line(seen)}")
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    line = _first_line(error)
    name = type(error).__name__
    return _whole_sentences(f"{name}: {line}" if line else name)


def _whole_sentences(text: str) -> str:
    """At most `FAILURE_CHARS_MAX` characters: the sentences that fit, or the begin of the first one."""
    if len(text) <= FAILURE_CHARS_MAX:
        return text
    head = text[:FAILURE_CHARS_MAX]
    return head[: head.rfind(". ") + 1] or head


def _first_line(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        # The user's own `__str__` failed.
        return ""
    return lines[0] if lines else ""


def exit_failure(code: object) -> Optional[str]:
    """The failure of an exit code; `None` for 0 and `None`. Python prints a text and exits with code 1."""
    if code is None or code == 0:
        return None
    if isinstance(code, int):
        return f"exit code {code}"
    return f"exit code 1: {str(code).splitlines()[0] if str(code) else ''}"[:FAILURE_CHARS_MAX]


class Lifecycle:
    """The hooks in the interpreter while a session waits for CUDA or is attached."""

    def __init__(self, end: Callable[[Optional[str]], object]) -> None:
        self._end = end
        self.failure: Optional[str] = None
        self._exit_failure: Optional[str] = None
        self._former_hook: Any = None
        self._hook: Any = None
        self._former_exit: Any = None
        self._exit: Any = None

    def install(self) -> None:
        """Installs the hooks in the interpreter."""
        self._former_hook = sys.excepthook
        self._hook = functools.partial(_on_exception, self, sys.excepthook)
        sys.excepthook = self._hook
        self._former_exit = sys.exit
        self._exit = _exit_wrapper(self, sys.exit)
        sys.exit = self._exit
        atexit.register(self._at_exit)

    def remove(self) -> None:
        """Removes the hooks. A hook stays if other code was installed on top of it."""
        if self._hook is not None and sys.excepthook is self._hook:
            sys.excepthook = self._former_hook
        if self._exit is not None and sys.exit is self._exit:
            sys.exit = self._former_exit
        atexit.unregister(self._at_exit)
        self._hook = self._exit = None

    def goes_on(self) -> None:
        """Training continues after a call of `sys.exit`, so the program caught the exit."""
        self._exit_failure = None

    def note_exit(self, code: object) -> None:
        """`sys.exit(code)` was called. In a thread other than the main one, this ends only the thread."""
        if threading.current_thread() is threading.main_thread():
            self._exit_failure = exit_failure(code)

    def _at_exit(self) -> None:
        try:
            self._end(self.failure or self._exit_failure)
        except (Exception, KeyboardInterrupt):
            # No error may keep the interpreter from ending, and its output would not be read. (A further Ctrl-C may
            # arrive at this point.)
            return


def _on_exception(lifecycle: Lifecycle, former: Any, kind: Any, error: Any, traceback: Any) -> None:
    try:
        lifecycle.failure = describe(error)
    except (Exception, KeyboardInterrupt):
        # A further Ctrl-C may arrive at this point.
        lifecycle.failure = getattr(kind, "__name__", "exception")
    former(kind, error, traceback)


def _exit_wrapper(lifecycle: Lifecycle, original: Any) -> Any:
    @functools.wraps(original)
    def exit(*args: Any, **kwargs: Any) -> Any:
        try:
            lifecycle.note_exit(args[0] if args else None)
        except Exception:
            lifecycle.failure = None
        return original(*args, **kwargs)

    return exit


def at_fork(silence: Callable[[], None]) -> None:
    """Calls `silence` in every child that this process forks. This cannot be undone."""
    os.register_at_fork(after_in_child=silence)


def child_of() -> Optional[tuple[int, str]]:
    """The process that started this one through `multiprocessing`, and the name that it gave this process; `None` if
    there is none."""
    process = sys.modules.get("multiprocessing.process")
    parent = None if process is None else process.parent_process()
    return None if process is None or parent is None else (int(parent.pid), str(process.current_process().name))
