"""The pytest plugin's arithmetic: amounts, sites, and usage from lists of events. Nothing here needs torch."""

from __future__ import annotations

from typing import Any

import pytest

from memctl_agent._pytest import _leaks, _limits, _rows
from memctl_agent._usage import _amounts, _trace

KIB = 1 << 10


def frames(*lines: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [{"filename": file, "line": line, "name": name} for file, line, name in lines]


def alloc(addr: int, size: int, line: int = 1, at: int = 0) -> dict[str, Any]:
    return {"action": "alloc", "addr": addr, "size": size, "time_us": at, "frames": frames(("/t/test_a.py", line, "f"))}


def free(addr: int, at: int = 0) -> dict[str, Any]:
    return {"action": "free_requested", "addr": addr, "size": 0, "time_us": at}


@pytest.mark.parametrize(
    ("value", "bytes_"),
    [
        ("2 GiB", 2 << 30),
        ("64 KiB", 64 << 10),
        ("64kib", 64 << 10),
        ("500 MB", 500_000_000),
        (" 1.5 GB ", 1_500_000_000),
        ("0.5MiB", 1 << 19),
        ("512 B", 512),
        ("9007199254740993 B", 9_007_199_254_740_993),
        (0, 0),
        (4096, 4096),
    ],
)
def test_amounts(value: object, bytes_: int) -> None:
    assert _limits.amount(value) == bytes_


@pytest.mark.parametrize(
    "value", ["", "2", "GiB", "-1 MiB", "2 gigs", "1e3 B", "1,000 B", "2 Gi", -1, 2.0, True, None, "9" * 30 + " TB"]
)
def test_other_amounts_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not an amount of memory; accepted are"):
        _limits.amount(value)


def test_amounts_for_people() -> None:
    texts = [_amounts.human(bytes_) for bytes_ in (0, 512, 1024, 1536, 1 << 20, (1 << 30) - 1, 3 << 40)]
    assert texts == ["0 B", "512 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 GiB", "3.0 TiB"]
    assert _amounts.exactly(2_097_664) == "2.0 MiB (2,097,664 bytes)"


def test_the_site_is_the_innermost_line_of_the_users_code() -> None:
    library = ("/v/lib/python3.11/site-packages/lib/a.py", 3, "inner")
    standard = ("/usr/lib/python3.11/contextlib.py", 5, "inner")
    user = ("/t/test_a.py", 7, "test_it")
    assert _trace.site_of(frames(library, user, ("/t/conftest.py", 1, "outer"))) == user
    assert _trace.site_of(frames(("<string>", 1, "g"), standard, user)) == user
    assert _trace.site_of(frames(standard, library)) == library
    assert _trace.site_of(frames(standard)) == standard
    assert _trace.site_of([]) is None


def test_the_lines_at_the_peak_sum_up_to_it() -> None:
    trace = [alloc(1, 4 * KIB, 1), alloc(2, 100, 2), free(1), alloc(3, KIB, 3), alloc(1, 3 * KIB, 1), alloc(4, 10, 3)]
    used = _trace.usage([trace])
    assert used.peak == 512 + KIB + 3 * KIB + 512 and used.peaks == {0: used.peak} and used.allocated == used.peak
    assert [(line.site and line.site[1], line.bytes_, line.blocks) for line in used.at_peak] == [
        (1, 3 * KIB, 1),
        (3, KIB + 512, 2),
        (2, 512, 1),
    ]
    assert sum(line.bytes_ for line in used.at_peak) == used.peak


def test_frees_of_earlier_blocks_do_not_count() -> None:
    used = _trace.usage([[free(9), alloc(1, 512), free(9), free(1)]])
    assert (used.peak, used.allocated, used.live) == (512, 0, {})


def test_a_peak_since_a_moment_begins_with_what_is_live_then() -> None:
    trace = [alloc(1, KIB), alloc(2, 8 * KIB), free(2), alloc(3, KIB), free(1)]
    assert _trace.usage([trace], since=[3]).peak == 2 * KIB
    assert _trace.usage([trace], since=[5]).peak == KIB
    assert _trace.usage([trace]).peak == 9 * KIB


def test_what_is_allocated_after_the_body_does_not_count_as_retained() -> None:
    trace = [alloc(1, KIB, 1), alloc(2, KIB, 2), free(1), alloc(3, 8 * KIB, 3), alloc(1, 4 * KIB, 4)]
    left = _trace.usage([trace], until=[2])
    assert left.allocated == KIB and set(left.live) == {(0, 2)}


def test_devices_are_summed_in_the_order_of_time() -> None:
    first = [alloc(1, KIB, at=1), free(1, at=3)]
    second = [alloc(1, 2 * KIB, at=2), free(1, at=4), alloc(1, 2 * KIB, at=5)]
    used = _trace.usage([first, second])
    assert used.peak == 3 * KIB and used.peaks == {0: KIB, 1: 2 * KIB} and used.allocated == 2 * KIB


def test_a_block_that_replaces_another_of_its_line_is_no_growth() -> None:
    site, other = ("/t/a.py", 1, "f"), ("/t/a.py", 2, "g")
    before = {(0, 1): (KIB, KIB, site), (0, 2): (KIB, KIB, None)}
    after = {(0, 3): (KIB, KIB, site), (0, 2): (KIB, KIB, None), (0, 4): (512, 512, other)}
    found = _leaks.growth(before, after, {(0, 3), (0, 4)})
    assert found.bytes_ == 512 and [line.site for line in found.lines] == [other] and found.blocks[other] == [(4, 512)]


def test_blocks_that_wait_for_a_stream_are_freed_already() -> None:
    blocks = [
        {"size": 1024, "requested_size": 700, "state": "active_allocated", "frames": []},
        {"size": 512, "requested_size": 12, "state": "active_pending_free", "frames": []},
        {"size": 512, "requested_size": 12, "state": "inactive"},
    ]
    assert _trace.blocks_of([{"address": 4096, "device": 1, "blocks": blocks}]) == {(1, 4096): (1024, 1024, None)}


def test_the_table_has_the_largest_peaks_first() -> None:
    rows = [
        {"test": name, "peak": peak, "peaks": {}, "retained": 0, "lines": [], "retained_lines": [], "reason": None}
        | {"has_limits": False, "has_failed": False}
        for name, peak in (("a", 512), ("b", 2 * KIB), ("c", 0), ("d", KIB))
    ]
    lines = _rows.table(rows, 2)
    assert [line.split()[-1] for line in lines[1:3]] == ["b", "d"]
    assert lines[3:] == ["2 of 3 tests that used GPU memory; --memctl-top 0 shows all", "no GPU memory: 1 test"]
