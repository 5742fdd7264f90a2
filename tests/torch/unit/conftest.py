"""Unit tests of the automatic marks: genuine torch, and a recorder in place of the native module.

The recorder only writes down its calls; whether the native module accepts them is tested end to end elsewhere.
Run them with the Python of a torch on the fake GPU (`tests/fakegpu/setup`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "agent" / "python"))

# No process outlives a test.
os.environ["MEMCTL_SERVICE"] = "off"

from memctl_agent import _session
from memctl_agent._annotations import Annotations
from memctl_agent._book import Book
from memctl_agent._hooks import Hooks, Hub
from memctl_agent._loop import Loop

KINDS = {1: "epoch", 2: "/epoch", 3: "step", 4: "/step", 5: "phase", 6: "/phase", 7: "region", 8: "/region", 9: "note"}
# The end of an epoch at the time of its last step, for a program that ends without closing its epoch.
KINDS[10] = "/epoch"
PHASES = {1: "train", 2: "eval", 3: "forward", 4: "backward", 5: "optimizer"}


class Recorder:
    """Marks in the order of their calls, as short words."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.settled = 0

    def mark(self, kind: int, number: int = 0, name: str = "") -> bool:
        """Replaces `_native.mark`."""
        if kind == 11:
            # Gradients were freed: this matters only where a program ends without a mark.
            self.settled += 1
        elif kind in (5, 6):
            self.words.append(f"{KINDS[kind]} {PHASES[number]}")
        elif kind in (7, 8, 9):
            self.words.append(f"{KINDS[kind]} {name}")
        else:
            self.words.append(f"{KINDS[kind]} {number}")
        return True

    def only(self, *kinds: str) -> list[str]:
        """The words of some kinds, ends included."""
        return [word for word in self.words if word.split()[0].lstrip("/") in kinds]

    def clear(self) -> None:
        """Forgets all marks so far."""
        self.words.clear()


class Watched:
    """A process whose loop is watched, without a session."""

    def __init__(self) -> None:
        import torch

        self.recorder = Recorder()
        self.book = Book()
        self.loop = Loop(self.book)
        self.hub = Hub(self.book, self.loop, Annotations(self.book, self.loop))
        self.hooks = Hooks(self.hub)
        self.book.open(self.recorder.mark)
        self.hooks.install(torch)

    @property
    def words(self) -> list[str]:
        """All marks."""
        return self.recorder.words

    def only(self, *kinds: str) -> list[str]:
        """Marks of some kinds."""
        return self.recorder.only(*kinds)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """The loop of this test is watched; the public calls are recorded in the same list."""
    made = Watched()
    monkeypatch.setattr(_session.SESSION, "book", made.book)
    yield made
    made.hooks.remove()
    assert made.hub.faults == 0, made.hub.last_fault


@pytest.fixture
def trouble() -> Iterator[Optional[str]]:
    """The session's last trouble is forgotten after the test."""
    yield None
    _session.SESSION.trouble = None
