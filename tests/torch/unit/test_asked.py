"""Holder requests: which thread searches when, the program's time between slices, and that no fault reaches it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

import memctl_agent
from memctl_agent import _asked
from memctl_agent._asked import HolderAnswerer
from memctl_agent._book import PHASE_END, STEP_END
from memctl_agent._session import Session

Ask = tuple[int, list[tuple[int, int]], int]
LIMIT_S = 60


class Native:
    """Requests one search, and records the answer and marks."""

    def __init__(self, ask: Optional[Ask] = None, may_be_asked: bool = True) -> None:
        self.ask, self.may_be_asked = ask, may_be_asked
        self.answers: list[tuple[int, Any]] = []
        self.marks: list[int] = []
        self.answered = threading.Event()

    def holders_word(self) -> Optional[tuple[int, int]]:
        """The system call does not exist, so a thread that waits in it checks again soon."""
        return (100_000, 0) if self.may_be_asked else None

    def holders_asked(self) -> Optional[Ask]:
        """The request, once."""
        ask, self.ask = self.ask, None
        return ask

    def holders_answer(self, ask: int, answer_json: str) -> bool:
        """The answer."""
        self.answers.append((ask, json.loads(answer_json)))
        self.answered.set()
        return True

    def mark(self, kind: int, number: int = 0, name: str = "") -> bool:
        """A mark."""
        self.marks.append(kind)
        return True


class Search:
    """A search of a given number of slices, which records the thread of each."""

    def __init__(self, slices: int, answer: Any, does: Callable[[], None] = lambda: None) -> None:
        self.left, self.result, self.does = slices, answer, does
        self.answer: Any = None
        self.threads: list[int] = []
        self.began: list[float] = []
        self.renewed: list[Any] = []

    def renew(self, blocks: list[tuple[int, int]]) -> bool:
        """Other blocks are live now."""
        self.renewed.append(blocks)
        return True

    def slice(self, slice_ms: float) -> float:
        """One slice."""
        self.threads.append(threading.get_ident())
        self.began.append(time.monotonic())
        self.does()
        self.left -= 1
        if self.left == 0:
            self.answer = self.result
        return slice_ms


def searching(monkeypatch: pytest.MonkeyPatch, search: Any) -> None:
    """Replaces the package's search."""
    module = types.ModuleType("memctl_agent._holders")
    module.begin = lambda *_: search  # type: ignore[attr-defined]
    module.load = lambda rest: rest()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "memctl_agent._holders", module)
    monkeypatch.setattr(memctl_agent, "_holders", module, raising=False)


@pytest.fixture
def asked() -> Any:
    made = HolderAnswerer(lambda: True)
    yield made
    made.end()


def test_who_has_no_steps_is_searched_and_answers(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer) -> None:
    search = Search(3, {"found": 1})
    searching(monkeypatch, search)
    native = Native((7, [(4096, 512), (8192, 512)], 50))
    asked.begin(native)
    assert native.answered.wait(LIMIT_S)
    assert native.answers == [(7, {"found": 1, "has_epochs": True})] and len(search.threads) == 3
    assert threading.get_ident() not in search.threads
    # Between slices the program has the interpreter for at least the minimum rest.
    rests = [after - before for before, after in zip(search.began, search.began[1:])]
    assert min(rests) >= _asked.REST_MS_MIN / 1e3


def test_where_steps_end_slices_are_theirs(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer) -> None:
    search = Search(4, {})
    searching(monkeypatch, search)
    monkeypatch.setattr(_asked, "GRACE_MS", LIMIT_S * 1e3)
    native = Native((7, [], 50))
    asked.begin(native)
    until = time.monotonic() + LIMIT_S
    while not native.answered.is_set():
        asked.step_ended()
        assert time.monotonic() < until
    # The first slice may run in the search thread: there was no step to wait for.
    assert set(search.threads[1:]) == {threading.get_ident()}


def test_a_search_hears_of_the_blocks_that_live_now(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer) -> None:
    native = Native((7, [(4096, 512)], 50))

    def replaced() -> None:
        if not search.renewed:
            native.ask = (7, [(8192, 512)], 50)

    search = Search(3, {"found": 1}, replaced)
    searching(monkeypatch, search)
    asked.begin(native)
    assert native.answered.wait(LIMIT_S)
    assert search.renewed == [[(8192, 512)]] and native.answers == [(7, {"found": 1, "has_epochs": True})]


def test_another_ask_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer) -> None:
    native = Native((7, [(4096, 512)], 50))
    later = Search(1, {"found": 2})

    def withdrawn() -> None:
        native.ask = (8, [(8192, 512)], 50)
        monkeypatch.setattr(memctl_agent._holders, "begin", lambda *_: later)

    searching(monkeypatch, Search(3, {"found": 1}, withdrawn))
    asked.begin(native)
    assert native.answered.wait(LIMIT_S)
    assert native.answers == [(8, {"found": 2, "has_epochs": True})]


@pytest.mark.parametrize("answer", [object(), {"a": {1, 2}}])
def test_what_cannot_be_told_is_a_fault(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer, answer: Any) -> None:
    searching(monkeypatch, Search(1, answer))
    native = Native((7, [], 50))
    asked.begin(native)
    assert native.answered.wait(LIMIT_S)
    [(number, reply)] = native.answers
    assert number == 7 and "Error: " in reply["fault"]


def test_a_search_that_does_not_begin_is_a_fault(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer) -> None:
    searching(monkeypatch, None)
    monkeypatch.setattr(memctl_agent._holders, "begin", lambda *_: 1 / 0)
    native = Native((7, [], 50))
    asked.begin(native)
    assert native.answered.wait(LIMIT_S)
    assert "Error: " in native.answers[0][1]["fault"]


def test_never_two_slices_at_once(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def does() -> None:
        begun.set()
        assert go_on.wait(LIMIT_S)

    search = Search(1, {}, does)
    searching(monkeypatch, search)
    native = Native((1, [], 50))
    asked.begin(native)
    assert begun.wait(LIMIT_S)
    asked.step_ended()
    assert len(search.threads) == 1
    go_on.set()
    assert native.answered.wait(LIMIT_S)


def test_who_may_not_be_asked_has_no_thread(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer) -> None:
    started: list[Any] = []
    monkeypatch.setattr(_asked._thread, "start_new_thread", lambda *them: started.append(them))
    asked.begin(Native((7, [], 50), may_be_asked=False))
    assert started == []
    asked.begin(Native((7, [], 50)))
    assert len(started) == 1


def test_slices_are_looked_for_at_the_ends_of_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    session, native, ends = Session(), Native(), []
    monkeypatch.setattr(session, "_native", native)
    monkeypatch.setattr(session._asked, "step_ended", lambda: ends.append(len(native.marks)))
    for kind in range(1, 12):
        session._mark(kind, 0, "")
    assert native.marks == list(range(1, 12)) and STEP_END in native.marks and PHASE_END in native.marks
    assert ends == [native.marks.index(STEP_END) + 1]


WAITING = """
import threading, time
from memctl_agent import _asked


class Waiting(_asked.HolderAnswerer):
    def _slice(self):
        ran.append((time.monotonic(), threading.current_thread() is threading.main_thread()))


ran = []
asked = Waiting(lambda: False)


def slices():
    time.sleep(0.5)
    for _ in range(20):
        asked._slice_in_main()


thread = threading.Thread(target=slices)
thread.start()
time.sleep(6)
assert len(ran) == 20 and not any(is_main for _, is_main in ran), ran
assert ran[-1][0] - ran[0][0] < 2, ran
# The main thread runs again, so the next slice is its own.
thread = threading.Thread(target=asked._slice_in_main)
thread.start()
while thread.is_alive():
    pass
assert ran[-1][1], ran
"""


def test_while_the_main_thread_waits_only_the_first_slice_waits_for_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING],
        env=os.environ | {"PYTHONPATH": str(Path(memctl_agent.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done


SIGNALLED = """
import ctypes, os, signal, threading, time
from memctl_agent import _asked


class Signalled(_asked.HolderAnswerer):
    def _slice(self):
        assert threading.current_thread() is threading.main_thread()
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass


asked = Signalled(lambda: False)
asked._is_due = True
_asked._due[:] = [asked]
threading.Thread(target=lambda: ctypes.pythonapi.Py_AddPendingCall(_asked._PENDING, None)).start()
end = time.time() + 30
while time.time() < end:
    pass
"""


def test_a_signal_within_a_slice_reaches_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED],
        env=os.environ | {"PYTHONPATH": str(Path(memctl_agent.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0 and done.stderr.rstrip().endswith("KeyboardInterrupt"), done


def test_a_slice_keeps_no_variable_of_its_callers(monkeypatch: pytest.MonkeyPatch, asked: HolderAnswerer) -> None:
    class Tensor:
        """An object whose end is seen."""

    ended: list[weakref.ref[Tensor]] = []
    asked._native = Native()
    monkeypatch.setattr(asked, "_search", Search(100, {}))

    def step() -> None:
        activation = Tensor()
        ended.append(weakref.ref(activation))
        asked.step_ended()
        asked._next = 0.0

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(5):
            step()
        assert [reference() for reference in ended] == [None] * 5
    finally:
        if was_enabled:
            gc.enable()
    assert asked._search.left == 95
