"""The results of measured tests, their way from the workers of pytest-xdist to the controller, and the table.

A worker's results travel with the end of its session. The table is printed once, by the process that prints pytest's
own summary.
Guarantees: without a measured test, nothing is printed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

import pytest  # pyright: ignore[reportMissingImports]

from memctl_agent._usage._amounts import human

# The name of the results among what a worker of pytest-xdist sends at its end.
OUTPUT = "memctl_gpu_memory"
# Lines of a test in the table.
LINES_MAX = 3

# A result: `test`, `peak`, `peaks` by device, `retained` (None if unknown), `lines` and `retained_lines` (bytes and
# text), `reason` (why it was not measured), `has_limits`, `has_failed` (by itself). Its values are plain: it travels.
Row = dict[str, Any]


def worker_output(config: Any) -> Optional[dict[str, Any]]:
    """What this process sends to a controller at its end; None if it is no worker of pytest-xdist."""
    return getattr(config, "workeroutput", None)


class Rows:
    """The results of this process or, in a controller, of all workers."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.rows: list[Row] = []
        self._lost: list[str] = []

    def pytest_sessionfinish(self) -> None:
        output = worker_output(self._config)
        if output is not None:
            output[OUTPUT] = self.rows

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        output = getattr(node, "workeroutput", None)
        if output is not None:
            self.rows += output.get(OUTPUT, [])
        elif error:
            self._lost.append(str(node.gateway.id))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        is_asked = self._config.getoption("memctl")
        notes = self._notes(is_asked)
        if not notes and not (is_asked and self.rows):
            return
        terminalreporter.write_sep("=", "memctl: GPU memory")
        if is_asked:
            for line in table(self.rows, self._config.getoption("memctl_top")):
                terminalreporter.write_line(line)
        for line in notes:
            terminalreporter.write_line(line)

    def _notes(self, is_asked: bool) -> list[str]:
        limited = Counter(row["reason"] for row in self.rows if row["reason"] and row["has_limits"])
        others = Counter(row["reason"] for row in self.rows if is_asked and row["reason"] and not row["has_limits"])
        notes = [f"limits not checked: {reason} ({_tests(count)})" for reason, count in limited.most_common()]
        notes += [f"not measured: {reason} ({_tests(count)})" for reason, count in others.most_common()]
        if self._lost and is_asked:
            notes.append(f"results are missing of workers that ended early: {', '.join(self._lost)}")
        return notes


def table(rows: list[Row], top: int) -> list[str]:
    """The lines of the table: the tests with the largest peaks, at most `top` of them (0: all)."""
    measured = [row for row in rows if not row["reason"]]
    used = [row for row in measured if row["peak"] or row["retained"]]
    used.sort(key=lambda row: (-row["peak"], -(row["retained"] or 0), row["test"]))
    shown = used[:top] if top else used
    lines = [f"{'peak':>11} {'retained':>11}  test"] if shown else []
    for row in shown:
        retained = "-" if row["retained"] is None else human(row["retained"])
        lines.append(f"{human(row['peak']):>11} {retained:>11}  {row['test']}{' (failed)' * row['has_failed']}")
        if len(row["peaks"]) > 1:
            each = ", ".join(f"cuda:{device} {human(peak)}" for device, peak in sorted(row["peaks"].items()))
            lines.append(f"{'':25}each device's own peak: {each}")
        lines += [f"{'':25}{human(bytes_):>10}  {text}" for bytes_, text in row["lines"][:LINES_MAX]]
        lines += [f"{'':25}{human(bytes_):>10}  retained: {text}" for bytes_, text in row["retained_lines"][:LINES_MAX]]
    if len(shown) < len(used):
        lines.append(f"{len(shown)} of {_tests(len(used))} that used GPU memory; --memctl-top 0 shows all")
    unused = len(measured) - len(used)
    if unused:
        lines.append(f"no GPU memory: {_tests(unused)}")
    return lines


def _tests(count: int) -> str:
    return f"{count:,} test{'s' * (count != 1)}"
