"""The hooks around a test that is measured: its limits, its row in the table, and the fixture `gpu_memory`.

Measured is the test's call: its body and, for `unittest`, also `setUp` and `tearDown`; not the fixtures. All runs of
the body count, also those before the run that `limit_gpu_leaks` compares. What they allocated and what is still there
when the fixtures are torn down is `retained`.
Guarantees: a test's own outcome stays; limits are checked only if it passed. A test that cannot be measured runs as
ever, and the summary has the reason.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any, Optional

import pytest  # pyright: ignore[reportMissingImports]

from memctl_agent._pytest import _leaks, _limits
from memctl_agent._pytest._limits import Limits
from memctl_agent._pytest._rows import Row, Rows
from memctl_agent._pytest._runs import Runs
from memctl_agent._usage import _trace
from memctl_agent._usage._amounts import exactly, human
from memctl_agent._usage._history import History

FIXTURE = "gpu_memory"
# Lines at the peak that a message names.
LINES_MAX = 5


class Measured:
    """One test."""

    def __init__(self, item: Any, limits: Limits) -> None:
        self.item, self.limits = item, limits
        self.row: Row = {
            "test": item.nodeid,
            "peak": 0,
            "peaks": {},
            "retained": None,
            "lines": [],
            "retained_lines": [],
            "reason": None,
            "has_limits": limits.are_any,
            "has_failed": False,
        }
        self.runs = Runs()
        # The number of the run of the body, from 0.
        self.run = 0
        # How many events the last run had, by device.
        self.until: list[int] = []


class Measurer:
    """The plugin object with the hooks. It is registered when there is a test to measure."""

    def __init__(self, config: Any, rows: Rows) -> None:
        self._all = bool(config.getoption("memctl"))
        self._root = str(config.rootpath)
        self._rows = rows
        self.history = History()
        self._current: Optional[Measured] = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        try:
            return (yield)
        finally:
            self._close()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: Any) -> Generator[None, Any, Any]:
        limits = _limits_or_failure(item)
        is_asked = limits.are_any or FIXTURE in getattr(item, "fixturenames", ())
        if not (self._all or is_asked):
            return (yield)
        test = self._current = Measured(item, limits)
        self.history.begin(may_import=is_asked)
        try:
            before = self._warmed_up(test)
            result = yield
        except BaseException as error:
            test.row["has_failed"] = not isinstance(error, pytest.skip.Exception)
            _note_run(error, test)
            self._used(test)
            raise
        used = self._used(test)
        if _kept(item):
            test.row["has_failed"] = True
        elif limits.are_any and used is not None:
            texts = self._exceeded(test, used, before)
            if texts:
                pytest.fail("\n".join(texts), pytrace=False)
        return result

    def _exceeded(self, test: Measured, used: _trace.Usage, before: _leaks.Blocks) -> list[str]:
        try:
            return [*self._over(test, used), *self._leaked(test, before)]
        except Exception as fault:
            test.row["reason"] = _own_fault(fault)
            return []

    def _warmed_up(self, test: Measured) -> _leaks.Blocks:
        """Runs the test's body before the run that is compared, and returns the blocks that are there then."""
        if test.limits.leaks is None or self.history.why_nothing():
            return {}
        for number in range(test.limits.warmups):
            if number:
                self._next_run(test)
            test.run = number
            test.item.runtest()
            if _kept(test.item):
                # pytest reports the kept exception, whichever is raised; the body must not run once more.
                raise _kept(test.item)[0].value
        test.run = test.limits.warmups
        return self._next_run(test)

    def _next_run(self, test: Measured) -> _leaks.Blocks:
        """Begins the next run of the test's body, and returns the blocks that are there then."""
        # Garbage of former runs would count in the peak, and would hide growth if it were collected during the run
        # that is compared.
        gc.collect()
        blocks: _leaks.Blocks = {}
        try:
            found = self.history.read()
            if found is not None:
                test.runs.next(found)
                blocks = _trace.blocks_of(found["segments"])
            self.history.restart()
        except Exception as fault:
            self.history.reason = _own_fault(fault)
        return blocks

    def _used(self, test: Measured) -> Optional[_trace.Usage]:
        """Writes a test's usage into its row. None if it cannot be measured."""
        try:
            return self._read_usage(test)
        except Exception as fault:
            test.row["reason"] = _own_fault(fault)
            return None

    def _read_usage(self, test: Measured) -> Optional[_trace.Usage]:
        found = self.history.read()
        test.row["reason"] = self.history.why_nothing()
        if found is None and test.row["reason"]:
            return None
        # (Without events, CUDA is still not in use.)
        found = found or {"device_traces": [], "segments": []}
        used = test.runs.usage(found)
        test.until = _trace.counts(found["device_traces"])
        test.row["peak"], test.row["peaks"] = used.peak, {str(device): peak for device, peak in used.peaks.items()}
        test.row["lines"] = self._texts(used.at_peak)
        if not used.allocated:
            test.row["retained"] = 0
        return used

    def _texts(self, lines: list[_trace.Line]) -> list[tuple[int, str]]:
        return [(line.bytes_, _trace.label(line.site, self._root)) for line in lines[:LINES_MAX]]

    def _over(self, test: Measured, used: _trace.Usage) -> list[str]:
        """The message about the peak, if it exceeds the limit."""
        limit = test.limits.memory
        if limit is None or used.peak <= limit:
            return []
        runs = 1 if test.limits.leaks is None else test.limits.warmups + 1
        texts = [
            f"memctl: the test's own GPU memory reached {exactly(used.peak)}{f' in {runs} runs' * (runs > 1)}, which "
            f"exceeds the limit of {exactly(limit)}. Live at the peak:"
        ]
        for line in used.at_peak[:LINES_MAX]:
            blocks = f" in {line.blocks} block{'s' * (line.blocks != 1)}"
            texts.append(f"{human(line.bytes_):>11}{blocks}  {_trace.label(line.site, self._root)}")
        if len(used.at_peak) > LINES_MAX:
            rest = used.at_peak[LINES_MAX:]
            texts.append(f"{human(sum(line.bytes_ for line in rest)):>11}  {len(rest)} other lines")
        if len(used.peaks) > 1:
            each = ", ".join(f"cuda:{device} {human(peak)}" for device, peak in sorted(used.peaks.items()))
            texts.append(f"  The sum of all devices counts; each device's own peak: {each}")
        return texts

    def _leaked(self, test: Measured, before: _leaks.Blocks) -> list[str]:
        """The message about what the last run left, if it exceeds the limit."""
        limit = test.limits.leaks
        if limit is None:
            return []
        found = _leaks.settled(self._blocks, before, limit)
        if found is None:
            test.row["reason"] = self.history.why_nothing()
            return []
        if found.bytes_ <= limit:
            return []
        module = str(getattr(getattr(test.item, "module", None), "__name__", ""))
        runs = f"after {test.limits.warmups} warm-up run{'s' * (test.limits.warmups != 1)}"
        head = (
            f"memctl: one run of the test left {exactly(found.bytes_)} of GPU memory, {runs}; the limit is "
            f"{exactly(limit)}. Left behind:"
        )
        return [head, *_leaks.described(found, self._root, module)]

    def _blocks(self) -> Optional[tuple[_leaks.Blocks, set[_trace.Key]]]:
        found = self.history.read()
        if found is None:
            # CUDA is still not in use, or the history cannot be read.
            return None if self.history.why_nothing() else ({}, set())
        return _trace.blocks_of(found["segments"]), set(_trace.usage(found["device_traces"]).live)

    def _close(self) -> None:
        """A test and its fixtures are over."""
        test, self._current = self._current, None
        if test is None:
            return
        try:
            # (Reading takes time, and what is freed cannot come back.)
            found = self.history.read() if test.row["retained"] is None else None
            if found is not None:
                left = test.runs.left(found, test.until)
                test.row["retained"] = left.allocated
                test.row["retained_lines"] = self._texts(_trace.lines_of(left.live.values()))
        except Exception as fault:
            test.row["reason"] = _own_fault(fault)
        finally:
            self.history.end()
            self._rows.rows.append(test.row)

    # -- for the fixture -----------------------------------------------------------------------------------------

    def now(self, turn: int, since: list[int]) -> tuple[_trace.Usage, int, list[int], Optional[str]]:
        """The current test's usage; the peak since `since` if it belongs to this `turn`. Then the turn, the number of
        events by device, and the reason if it is not measured."""
        found = self.history.read()
        if found is None:
            return _trace.Usage(), self.history.turn, [], self.history.why_nothing()
        traces = found["device_traces"]
        used = _trace.usage(traces, since if turn == self.history.turn else ())
        return used, self.history.turn, _trace.counts(traces), None

    def text(self, site: _trace.Site) -> str:
        """A site for people."""
        return _trace.label(site, self._root)


def _limits_or_failure(item: Any) -> Limits:
    """The limits of a test, which fails if they are not understood."""
    try:
        return _limits.limits_of(item)
    except pytest.UsageError as error:
        text = str(error)
    raise pytest.fail.Exception(text, pytrace=False)


def _own_fault(fault: Exception) -> str:
    """The reason if memctl fails. The test does not."""
    return f"a fault of memctl ({type(fault).__name__}: {fault})"


def _note_run(error: BaseException, test: Measured) -> None:
    """Adds to an exception in which run it was raised, if it was not the first one: such a test passes alone."""
    add = getattr(error, "add_note", None)  # (Python 3.11 and later)
    if add is None or test.run == 0 or isinstance(error, pytest.skip.Exception):
        return
    runs = test.limits.warmups + 1
    add(f"memctl: this was run {test.run + 1} of {runs}, because {_limits.LEAKS} repeats the body of the test")


def _kept(item: Any) -> list[Any]:
    """The exceptions of a `unittest` test that has failed or was skipped: it keeps them instead of raising them."""
    return getattr(item, "_excinfo", None) or []
