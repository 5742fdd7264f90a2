"""Answers requests for the objects that hold the tensors on some blocks. The requests come from the launcher, or from
the agent's worker in this process.

A thread sleeps until there is a request. While it sleeps, it does not need the interpreter's lock and is not woken. The
thread begins the search, which continues in slices. If steps end often enough, each slice runs at the end of a step, on
the thread that ended the step. Otherwise the main thread runs a slice between two of its instructions, so that a
process without steps also answers. If the main thread waits, for example for a request, the slices run in the
sleeping thread.
Guarantees: without a request, the end of a step reads one attribute. There are never two slices at once. Between two
slices the program runs for several times the duration of a slice. Nothing raises into the program, and every fault gets
an answer. No slice runs while autograd's engine does: its threads change graphs and gradients without the interpreter's
lock, and a search that reads them meanwhile would read freed memory. For the same reason no slice runs while the main
thread is within an operation of torch that has released the lock: `parameter.grad = None` frees a gradient before the
parameter forgets it.
This module does not search. `_holders` does. The thread imports it at the first request.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
import threading
import time
import types
from typing import Any, Callable, Optional

# Duration of a slice. After a slice, the program continues for `RESTS` times this duration, and at least for
# `REST_MS_MIN`.
SLICE_MS = 2.0
RESTS = 5
REST_MS_MIN = 10.0
# How long the thread waits for the end of a step before it has the main thread run a slice.
GRACE_MS = 30.0
# How long the thread sleeps at most before it checks whether the session continues. How long it sleeps if it cannot
# sleep until the word changes.
SLEEP_S = 30.0
POLL_S = 0.2
# The functions of torch in which a thread waits for autograd's engine, and the end of their file's name.
ENGINE = (
    ("_engine_run_backward", "autograd/graph.py"),
    ("backward", "autograd/__init__.py"),
    ("grad", "autograd/__init__.py"),
)
# During a slice, no other thread gets the interpreter's lock unless the slice lasts longer than this.
ALONE_S = 1.0
# How long the main thread may take to begin a slice. If it is at the same instruction for so long, it waits. It still
# waits there until it runs the call that it was asked to run.
MAIN_S = 1.0
# FUTEX_WAIT, and the value of the word while there is no request.
_WAIT, _IDLE = 0, 0


class _Time(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class HolderAnswerer:
    """Answers requests, one at a time. `has_epochs` returns whether the program has epochs."""

    def __init__(self, has_epochs: Callable[[], bool]) -> None:
        self._has_epochs = has_epochs
        self._slicing = threading.Lock()
        # The current request's id and search, and when its next slice may run.
        self._search: Any = None
        self._number = 0
        self._next = 0.0
        # Whether the main thread is to run a slice, and the instruction at which it waits instead.
        self._is_due = False
        self._waits_at: Optional[tuple[int, int]] = None
        self._native: Any = None
        # Number of sessions so far. A thread belongs to one session.
        self._turn = 0

    def begin(self, native: Any) -> None:
        """Starts to answer requests. If searches are forbidden, no thread is started."""
        self._native, self._turn = native, self._turn + 1
        try:
            if native.holders_word() is not None:
                _thread.start_new_thread(self._sleep, (native, self._turn))
        except Exception:
            # The process cannot have more threads. Only requests cannot be answered.
            return

    def end(self) -> None:
        """Stops answering requests. The thread ends at its next check."""
        self._native = self._search = None
        self._turn += 1

    def step_ended(self) -> None:
        """A step has ended on this thread. This is the best moment for a slice, if one is due."""
        if self._search is not None and time.monotonic() >= self._next:
            self._slice()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _sleep(self, native: Any, turn: int) -> None:
        """Runs the thread: sleeps until there is a request, and makes sure that it is answered."""
        try:
            while self._turn == turn:
                if self._search is not None:
                    self._pass_time()
                elif not self._take(native) and not self._wait(native):
                    return
        except Exception:
            # From now on this process answers no requests.
            self._search = None

    def _wait(self, native: Any) -> bool:
        """Sleeps until there may be a request. Returns whether the session continues."""
        place = native.holders_word()
        if place is None:
            return False
        number, word = place
        limit = _Time(int(SLEEP_S), 0)
        # A call through this object runs without the interpreter's lock.
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (number, word, _WAIT, _IDLE)
        done = libc.syscall(*map(ctypes.c_long, arguments), ctypes.byref(limit), None, ctypes.c_long(0))
        if done != 0 and ctypes.get_errno() not in (4, 110):
            # The sleep was neither interrupted nor timed out. The word has another value, or the system refuses the
            # call.
            time.sleep(POLL_S)
        return True

    def _take(self, native: Any) -> bool:
        """Begins the search for a request, if there is one."""
        asked = native.holders_asked()
        if asked is None:
            return False
        number, blocks, budget_ms = asked
        try:
            from memctl_agent import _holders

            _holders.load(_rest)
            self._number, self._next = number, 0.0
            self._search = _holders.begin(native, blocks, budget_ms)
        except Exception as fault:
            native.holders_answer(number, _fault(fault))
        return True

    def _pass_time(self) -> None:
        """Waits until a slice is due. Runs it if no end of a step has run it."""
        due = self._next + (GRACE_MS / 1e3 if self._next else 0.0)
        left = due - time.monotonic()
        if left > 0:
            time.sleep(left)
        elif time.monotonic() >= self._next:
            self._slice_in_main()

    def _slice_in_main(self) -> None:
        """Has the main thread run a slice between two of its instructions. If it does not come to it because it waits,
        this thread runs the slice, and the next ones during the same wait."""
        place = _place_of_main()
        if self._waits_at is not None and self._waits_at == place:
            self._slice()
            return
        self._waits_at, self._is_due = None, True
        _due[:] = [self]
        ctypes.pythonapi.Py_AddPendingCall(_PENDING, None)
        end = time.monotonic() + MAIN_S
        while self._is_due and time.monotonic() < end:
            time.sleep(REST_MS_MIN / 1e3)
        if self._is_due and place is not None and place == _place_of_main():
            self._is_due, self._waits_at = False, place
            self._slice()

    def in_main(self) -> None:
        """Runs a slice on the main thread, if one is due. The main thread does not wait any more."""
        self._waits_at = None
        if self._is_due:
            self._is_due = False
            if time.monotonic() >= self._next:
                self._slice()

    # -- a slice -----------------------------------------------------------------------------------------------------

    def _renewed(self, native: Any) -> Any:
        """The current search. If the launcher now requests other blocks, the search continues with these. The first
        blocks may have been freed meanwhile."""
        search = self._search
        asked = None if search is None else native.holders_asked()
        if search is not None and asked is not None:
            number, blocks, budget_ms = asked
            if number != self._number:
                from memctl_agent import _holders

                self._number, self._search = number, _holders.begin(native, blocks, budget_ms)
            else:
                search.renew(blocks)
        return self._search

    def _slice(self) -> None:
        """Runs one slice. If it was the last one, sends the answer. Returns at once if another thread runs a slice."""
        if not self._slicing.acquire(blocking=False):
            return
        interval = sys.getswitchinterval()
        try:
            # From here on, no thread can start the engine, because this needs the lock.
            sys.setswitchinterval(ALONE_S)
            if _engine_runs():
                self._next = time.monotonic() + REST_MS_MIN / 1e3
                return
            native = self._native
            search = None if native is None else self._renewed(native)
            if search is None or native is None:
                return
            took_ms = search.slice(SLICE_MS)
            if search.answer is not None:
                self._search = None
                native.holders_answer(self._number, _json(search.answer, self._has_epochs))
            self._next = time.monotonic() + max(REST_MS_MIN, RESTS * took_ms) / 1e3
        except Exception:
            # The session ended meanwhile, so the answer is no longer needed.
            self._search = None
        finally:
            sys.setswitchinterval(interval)
            self._slicing.release()


# The one that has a slice for the main thread.
_due: list[HolderAnswerer] = []


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _PENDING(_: Any) -> int:
    """What the interpreter calls on the main thread."""
    try:
        for asked in list(_due):
            asked.in_main()
    except BaseException as raised:
        # The program's own signal handlers may raise here. The program gets the exception at its next instruction.
        _raise_later(raised)
    return 0


def _raise_later(raised: BaseException) -> None:
    """Raises an exception like this one in the main thread, at its next instruction."""
    kind, arguments = type(raised), raised.args

    def begin(self: BaseException) -> None:
        kind.__init__(self, *arguments)

    try:
        # The interpreter takes a class here, and calls it without arguments.
        again = type(kind.__name__, (kind,), {"__init__": begin, "__module__": kind.__module__})
    except TypeError:
        again = kind
    main = ctypes.c_ulong(threading.main_thread().ident or 0)

    def raise_it() -> None:
        # The call from the interpreter must have ended, or the exception would be raised within it and be lost.
        time.sleep(REST_MS_MIN / 1e3)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(again))

    _thread.start_new_thread(raise_it, ())


def _place_of_main() -> Optional[tuple[int, int]]:
    """The instruction at which the main thread is: its frame and the offset in it."""
    number = threading.main_thread().ident
    frame = None if number is None else sys._current_frames().get(number)
    return None if frame is None else (id(frame), frame.f_lasti)


def _engine_runs() -> bool:
    """Whether a thread is in a call of autograd's engine, which may have called a hook of the program."""
    innermost = sys._current_frames()
    frame: Optional[types.FrameType] = None
    try:
        while innermost:
            frame = innermost.popitem()[1]
            while frame is not None:
                code = frame.f_code
                if any(code.co_name == name and code.co_filename.endswith(file) for name, file in ENGINE):
                    return True
                frame = frame.f_back
        return False
    finally:
        # If a variable referred to this function's own frame, this would be a cycle. It would keep the variables of all
        # callers alive, the program's included, until the collector runs.
        innermost.clear()
        frame = None


def _rest() -> None:
    """Lets the program run for a while."""
    time.sleep(REST_MS_MIN / 1e3)


def _json(answer: Any, has_epochs: Callable[[], bool]) -> str:
    """The answer as JSON, with whether the program has epochs; or a fault in its place."""
    import json

    try:
        return json.dumps({**answer, "has_epochs": has_epochs()})
    except Exception as fault:
        return _fault(fault)


def _fault(fault: Optional[BaseException]) -> str:
    import json

    return json.dumps({"fault": f"{type(fault).__name__}: {fault}"})
