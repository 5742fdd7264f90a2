"""Asks for holders at the ends of steps: what is asked, when, and that no fault of the search reaches the program."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Optional

import pytest

import memctl_agent
from memctl_agent._asked import Asked
from memctl_agent._book import PHASE_END, STEP_END
from memctl_agent._session import Session

Ask = tuple[int, list[tuple[int, int]], int]


class Native:
    """Asks once, and takes the answer and marks."""

    def __init__(self, ask: Optional[Ask] = None) -> None:
        self.ask = ask
        self.looks = 0
        self.answers: list[tuple[int, Any]] = []
        self.marks: list[int] = []

    def holders_asked(self) -> Optional[Ask]:
        """What is asked, once."""
        self.looks += 1
        ask, self.ask = self.ask, None
        return ask

    def holders_answer(self, ask: int, answer_json: str) -> bool:
        """The answer."""
        self.answers.append((ask, json.loads(answer_json)))
        return True

    def mark(self, kind: int, number: int = 0, name: str = "") -> bool:
        """A mark."""
        self.marks.append(kind)
        return True


def searching(monkeypatch: pytest.MonkeyPatch, find: Callable[[Any, int], Any]) -> None:
    """Puts a search in the place of the package's."""
    module = types.ModuleType("memctl_agent._holders")
    module.find = find  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "memctl_agent._holders", module)
    monkeypatch.setattr(memctl_agent, "_holders", module, raising=False)


def test_what_is_asked_is_searched_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    searching(monkeypatch, lambda blocks, budget_ms: {"blocks": len(blocks), "budget": budget_ms})
    native = Native((7, [(4096, 512), (8192, 512)], 50))
    asked = Asked()
    asked.answer(native)
    asked.answer(native)
    assert native.answers == [(7, {"blocks": 2, "budget": 50})]


@pytest.mark.parametrize("find", [lambda *_: 1 / 0, lambda *_: object(), lambda *_: {"a": {1, 2}}])
def test_a_fault_of_the_search_is_an_answer(monkeypatch: pytest.MonkeyPatch, find: Callable[[Any, int], Any]) -> None:
    searching(monkeypatch, find)
    native = Native((7, [(4096, 512)], 50))
    Asked().answer(native)
    [(number, answer)] = native.answers
    assert number == 7 and "Error: " in answer["fault"]


def test_a_closed_link_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    searching(monkeypatch, lambda *_: {})
    native = Native((7, [(4096, 512)], 50))
    monkeypatch.setattr(native, "holders_answer", lambda *_: 1 / 0)
    asked = Asked()
    asked.answer(native)
    native = Native((8, [], 50))
    asked.answer(native)
    assert [number for number, _ in native.answers] == [8], "the next ask is answered"


def test_never_two_searches_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def find(*_: Any) -> dict[str, object]:
        begun.set()
        assert go_on.wait(60)
        return {}

    searching(monkeypatch, find)
    asked, first, second = Asked(), Native((1, [], 50)), Native((2, [], 50))
    thread = threading.Thread(target=asked.answer, args=(first,))
    thread.start()
    assert begun.wait(60)
    asked.answer(second)
    assert second.looks == 0, "its ask waits for a later step"
    go_on.set()
    thread.join()
    asked.answer(second)
    assert [number for number, _ in first.answers + second.answers] == [1, 2]


def test_asks_are_looked_for_at_the_ends_of_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    session, native = Session(), Native()
    monkeypatch.setattr(session, "_native", native)
    for kind in range(1, 12):
        session._mark(kind, 0, "")
    assert native.marks == list(range(1, 12)) and STEP_END in native.marks and PHASE_END in native.marks
    assert native.looks == 1
