"""The parts of the notebook's magic that need neither IPython nor torch: names of lines, figures, and HTML."""

from __future__ import annotations

import html
import re
from typing import Any

from memctl_agent._notebook._names import Names, Place
from memctl_agent._notebook._view import Page, Row, View
from memctl_agent._usage import _trace

MIB = 1 << 20
CELL = "<ipython-input-{}-0123abcd>"


def frames(*lines: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [{"filename": file, "line": line, "name": name} for file, line, name in lines]


def test_lines_are_named_by_their_cells() -> None:
    names = Names(None, 7)
    here, other = CELL.format(7), CELL.format(3)
    place = names.place(frames(("/v/site-packages/lib.py", 1, "f"), (other, 4, "make"), (here, 2, "<module>")))
    assert place == Place(2, (other, 4, "make"))
    assert names.label(place) == "Cell In[7], line 2: Cell In[3], line 4 in make"
    assert names.label(names.place(frames((here, 2, "<cell line: 1>")))) == "Cell In[7], line 2"
    # A function of the cell itself: its line says more than the call.
    assert names.label(names.place(frames((here, 3, "f"), (here, 5, "<module>")))) == "Cell In[7], line 3 in f"
    assert names.label(names.place(frames(("/t/train.py", 9, "step"), (here, 5, "<module>")))) == (
        "Cell In[7], line 5: /t/train.py:9 in step"
    )
    assert names.label(names.place([])) == "no Python line (a thread of autograd, or C++)"


def alloc(addr: int, size: int, at: int) -> dict[str, Any]:
    return {"action": "alloc", "addr": addr, "size": size, "time_us": at, "frames": []}


def free(addr: int, size: int, at: int) -> dict[str, Any]:
    return {"action": "free_requested", "addr": addr, "size": size, "time_us": at}


def test_the_rise_counts_blocks_from_before_when_they_are_freed() -> None:
    first = [free(1, 4 * MIB, 1), alloc(2, 6 * MIB, 2), free(2, 6 * MIB, 5)]
    second = [alloc(3, 3 * MIB, 3), free(3, 3 * MIB, 4)]
    assert _trace.rise([first]) == 2 * MIB and _trace.rise([first, second]) == 5 * MIB
    assert _trace.rise([[free(1, MIB, 1)]]) == 0 and _trace.rise([]) == 0
    # The cell's own peak leaves out what was there before.
    assert _trace.usage([first, second]).peak == 9 * MIB


def test_texts_are_escaped() -> None:
    evil = "<script>&\"'"
    view = View(evil, [(evil, evil)], [Row(evil, 1, evil, [evil])], [evil])
    assert "<script" not in view._repr_html_() and view._repr_html_().count(html.escape(evil)) == 7
    assert repr(view).count(evil) == 7
    page = Page(f"<!doctype html>{evil}", evil, 300, "text")
    [document] = re.findall(r'srcdoc="([^"]*)"', page._repr_html_())
    assert html.unescape(document) == f"<!doctype html>{evil}" and "<script" not in page._repr_html_()
    assert repr(page) == "text"
