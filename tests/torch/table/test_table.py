"""The live table: jobs that leak, fill, level off and release, and whether memctl's verdict on each is true.

The default run has the ten quick ones. `./test table` has all forty (`MEMCTL_TABLE=all`), and keeps records and table
in the folder that `MEMCTL_TABLE_OUT` names.
"""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest

import run_table
import table
from assess import Holder, Moment
from truth import JOBS, Course, HeldBy

ALL = os.environ.get("MEMCTL_TABLE") == "all"
WANTED = [truth for truth in JOBS if ALL or truth.quick]
AT_ONCE = 4 if ALL else 5
# The required number of right verdicts of forty, and of right holders of twenty.
RIGHT_LIVE, RIGHT_AT_END, HOLDERS = 34, 38, 17


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, table.Row]:
    memctl = shutil.which("memctl")
    assert memctl, "the wheel is not installed in this venv"
    out = pathlib.Path(os.environ.get("MEMCTL_TABLE_OUT") or tmp_path_factory.mktemp("table"))
    found = run_table.run(WANTED, memctl, out, quick=not ALL, at_once=AT_ONCE)
    table.write(out, found)
    print(table.markdown(found))
    return {one.truth.name: one for one in found}


@pytest.mark.parametrize("name", [truth.name for truth in WANTED])
def test_pytorch_counts_what_is_said_to_be_true(rows: dict[str, table.Row], name: str) -> None:
    assert rows[name].unproved is None


@pytest.mark.parametrize("name", [truth.name for truth in WANTED])
def test_every_command_says_the_same(rows: dict[str, table.Row], name: str) -> None:
    assert rows[name].disagreements == [], rows[name]


def test_what_grows_is_never_called_steady(rows: dict[str, table.Row]) -> None:
    assert [name for name, one in rows.items() if one.grown_and_called_steady] == []


def test_what_is_bounded_is_never_called_a_leak(rows: dict[str, table.Row]) -> None:
    called = {name: one.end for name, one in rows.items() if one.bounded_and_called_leak}
    assert not called, said(called)


def test_verdicts_are_true(rows: dict[str, table.Row]) -> None:
    wrong = {name: one.end for name, one in rows.items() if one.end.wrong is not None}
    allowed = len(JOBS) - RIGHT_AT_END if ALL else 0
    assert len(wrong) <= allowed, said(wrong)


def said(wrong: dict[str, Moment | None]) -> str:
    return "\n".join(f"{name}: {one and (one.wrong, one.sentence)}" for name, one in wrong.items())


@pytest.mark.skipif(not ALL, reason="the quick jobs are over before thirty seconds: ./test table asks all forty then")
def test_verdicts_are_true_after_thirty_seconds(rows: dict[str, table.Row]) -> None:
    wrong = {name: one.live for name, one in rows.items() if one.live is None or one.live.wrong is not None}
    assert len(wrong) <= len(JOBS) - RIGHT_LIVE, said(wrong)


def test_holders_are_named(rows: dict[str, table.Row]) -> None:
    leaks = [one for one in rows.values() if one.truth.course is Course.LEAK]
    assert [one.end for one in rows.values() if one.end.holder_is is Holder.WRONG] == []
    if ALL:
        right = [one.truth.name for one in leaks if one.end.holder_is is Holder.RIGHT]
        assert len(right) >= HOLDERS, right
        said = [one.end.holder for one in leaks if one.truth.held_by is HeldBy.CPP]
        assert all(said), said
