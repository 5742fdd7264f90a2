"""The pytest plugin: whole runs of pytest over small suites, with genuine torch on the fake GPU.

Importing torch takes seconds, so most tests that need a device share one suite, `pytest_plugin_suite.py`. The other
runs have one or two tests each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from memctl_agent._pytest._runs import Runs

# As in the other live tests: a busy machine takes minutes.
LIMIT_S = 600

# Outcomes and texts of all reports, also of those that come from a worker of pytest-xdist.
CONFTEST = """
import json, os, sys
REPORTS = {}
def pytest_runtest_logreport(report):
    known = REPORTS.setdefault(report.nodeid.split("::", 1)[1], ["passed", ""])
    if report.outcome != "passed":
        known[:] = [report.outcome + " " + report.when, report.longreprtext]
def pytest_sessionfinish(session):
    switch = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_record_memory_history", None)
    is_used = switch and sys.modules["torch"].cuda.is_initialized()
    if hasattr(switch, "__wrapped__") or (is_used and sys.modules["torch"]._C._cuda_isHistoryEnabled()):
        open(os.environ["REPORTS"] + ".left", "w").close()
    if not hasattr(session.config, "workerinput"):
        with open(os.environ["REPORTS"], "w") as file:
            json.dump(REPORTS, file)
"""

SUITE = pathlib.Path(__file__).with_name("pytest_plugin_suite.py").read_text()

FAILED = {
    "test_peak_over": "test_suite.py",
    "test_peak_over_in_bytes": "in empty",
    "test_leak_list": "list `KEPT` of module `test_suite`",
    "test_leak_class": "class `Holder`",
    "test_leak_dict[1]": "dict `CACHE` of module `test_suite`",
    "test_leak_dict[2]": "dict `CACHE` of module `test_suite`",
    "test_leak_first_run": "in cached",
    "test_leak_that_garbage_would_hide": "left 512 B of GPU memory",
    "TestClosest::test_of_the_class": "the limit of 1.0 KiB",
    "TestUnit::test_unit_peak": "in empty",
    "TestUnit::test_unit_leak": "list `KEPT` of module `test_suite`",
    "TestUnit::test_unit_fails": "by itself",
    "test_a_reset_hides_no_peak": "reached 8.0 MiB (8,388,608 bytes)",
    "test_runs_fill_a_cache": "reached 8.0 MiB (8,388,608 bytes) in 3 runs",
    "test_runs_begin_with_scratch": "reached 8.0 MiB (8,388,608 bytes) in 3 runs",
    "test_runs_add_up": "3.0 MiB in 3 blocks",
    "test_runs_end_early": "by itself",
    "test_beside_memray_gpu": "reached 2.0 MiB (2,097,152 bytes)",
    "test_beside_memray_host": "Test was limited to 1.0MiB",
}


class Ran:
    """A run of pytest: exit code, output, and outcome and text of every test."""

    def __init__(self, folder: pathlib.Path, arguments: tuple[str, ...], settings: dict[str, str]) -> None:
        reports = folder / "reports.json"
        foreign = ("PYTEST_", "MEMCTL_", "MEMRAY_", "COLUMNS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment = {**kept, "REPORTS": str(reports), **settings}
        environment["FAKE_GPU_STATE"] = str(folder / "gpus")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        self.code, self.out = done.returncode, done.stdout + done.stderr
        # Nothing of memctl is left in torch.
        assert not reports.with_name("reports.json.left").exists(), self
        self.tests: dict[str, list[str]] = json.loads(reports.read_text()) if reports.exists() else {}

    def __repr__(self) -> str:
        return f"exit code {self.code}\n{self.out[-8000:]}"


def run(folder: pathlib.Path, suite: str, *arguments: str, **settings: str) -> Ran:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(suite)
    return Ran(folder, arguments, settings)


@pytest.fixture(scope="module")
def memray() -> str:
    """The path of a folder into which pytest-memray is installed once. An empty text if this Python already has it."""
    if importlib.util.find_spec("pytest_memray") is not None:
        return ""
    cache = pathlib.Path(os.environ.get("MEMCTL_CACHE") or "~/.cache/memctl").expanduser() / "tools"
    folder = cache / f"pytest-memray-{sys.implementation.cache_tag}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as part:
            command = [sys.executable, "-m", "pip", "install", "-q", "--target", f"{part}/made", "pytest-memray"]
            subprocess.run(command, check=True, timeout=LIMIT_S)
            pathlib.Path(part, "made").rename(folder)
    return str(folder)


# The tests that also run in workers of pytest-xdist. Each worker imports torch, so the other tests are not repeated.
IN_WORKERS = "peak or list or unit or fixture or own or expected"


@pytest.fixture(scope="module", params=[(), ("-n", "2", "-k", IN_WORKERS)], ids=["alone", "xdist"])
def ran(request: Any, tmp_path_factory: pytest.TempPathFactory, memray: str) -> Ran:
    path = os.pathsep.join(part for part in (os.environ.get("PYTHONPATH", ""), memray) if part)
    arguments = ("--memctl", "--memctl-top", "0", *request.param)
    made = run(tmp_path_factory.mktemp("suite"), SUITE, *arguments, PYTHONPATH=path)
    assert len(made.tests) == (14 if request.param else SUITE.count("def test_") + 1), made
    return made


def test_planted_leaks_and_peaks_fail_with_their_lines_and_all_others_pass(ran: Ran) -> None:
    found = {name: text for name, (outcome, text) in ran.tests.items() if outcome == "failed call"}
    expected = {name: text for name, text in FAILED.items() if name in ran.tests}
    assert found.keys() == expected.keys() and len(found) > 6, ran
    for name, text in expected.items():
        assert text in found[name], (name, found[name])
    others = {name: outcome for name, (outcome, _) in ran.tests.items() if name not in found}
    skipped = {name for name, outcome in others.items() if outcome == "skipped call"}
    assert skipped == {"test_expected", "test_skips"} & others.keys(), ran
    assert {outcome for name, outcome in others.items() if name not in skipped} == {"passed"}, ran


def test_the_peak_names_the_line_of_the_allocation(ran: Ran) -> None:
    line = 1 + SUITE.splitlines().index("    return torch.empty(size, dtype=torch.uint8, device=device)")
    assert f"2.0 MiB in 2 blocks  test_suite.py:{line} in empty" in ran.tests["test_peak_over"][1]
    assert "(2,097,664 bytes)" in ran.tests["test_peak_over"][1]
    leak = ran.tests["test_leak_list"][1]
    assert f"1.0 MiB in 1 block  test_suite.py:{line} in empty" in leak and "after 2 warm-up runs" in leak


def rows_of(ran: Ran) -> dict[str, str]:
    """Peak and retained bytes in the table, by test."""
    # Where `CI` is set, pytest's summary has whole messages, with sizes.
    rows = [line for line in ran.out.splitlines() if "iB" in line and not line.startswith(("FAILED", "ERROR"))]
    lines = [line.partition("test_suite.py::") for line in rows]
    return {test.split()[0]: " ".join(figures.split()) for figures, _, test in lines if test}


def test_all_runs_of_a_test_count_in_the_table(ran: Ran) -> None:
    found = {name: figures for name, figures in rows_of(ran).items() if name.startswith("test_runs")}
    expected = {
        "test_runs_fill_a_cache": "8.0 MiB 8.0 MiB",
        "test_runs_begin_with_scratch": "8.0 MiB 0 B",
        "test_runs_add_up": "3.0 MiB 3.0 MiB",
        "test_runs_end_early": "3.0 MiB 1.0 MiB",
        "test_runs_replace_a_block": "2.0 MiB 1.0 MiB",
        "test_runs_leave_garbage": "1.0 MiB 0 B",
        "test_runs_begin_at_zero": "3.0 MiB 2.0 MiB",
    }
    assert found == {name: figures for name, figures in expected.items() if name in ran.tests}, ran


def test_the_table_is_printed_once_and_has_peaks_and_what_was_retained(ran: Ran) -> None:
    assert ran.out.count("memctl: GPU memory") == 1, ran
    rows = rows_of(ran)
    assert rows["test_peak_fits"] == "2.0 MiB 0 B"
    assert rows["test_leak_list"] == rows["TestUnit::test_unit_leak"] == "3.0 MiB 3.0 MiB"
    assert rows["test_fixtures_do_not_count"] == "1.0 MiB 0 B"
    assert "limits not checked: the test records PyTorch's memory history itself (1 test)" in ran.out, ran


def event(action: str, address: int, time_us: int = 0, size: int = 512) -> dict[str, Any]:
    frame = {"filename": "/repo/test_a.py", "line": 7, "name": "test_a"}
    return {"action": action, "addr": address, "size": size, "time_us": time_us, "frames": [frame]}


def reading(*traces: list[dict[str, Any]], allocated: tuple[int, ...] = ()) -> dict[str, Any]:
    """A reading of the history. Blocks of 512 bytes are allocated at these addresses of device 0."""
    blocks = {address: [{"state": "active_allocated", "size": 512}] for address in allocated}
    segments = [{"device": 0, "address": address, "blocks": one} for address, one in blocks.items()]
    return {"device_traces": list(traces), "segments": segments}


def test_a_block_whose_free_was_missed_between_two_runs_does_not_count() -> None:
    runs = Runs()
    runs.next(reading([event("alloc", 1024), event("alloc", 2048), event("alloc", 4096), event("alloc", 8192)]))
    # 1024 is still there, the run frees 2048; 4096 is not there, and 8192 is another block than before.
    events = [event("free_requested", 2048), event("alloc", 8192, size=1024)]
    used = runs.usage(reading(events, allocated=(1024, 8192)))
    assert (used.peak, used.allocated, sorted(used.live)) == (2048, 1536, [(0, 1024), (0, 8192)])
    # After the run, block 1024, which existed before the run, is freed, and other blocks are allocated.
    events += [event("free_requested", 1024), event("alloc", 1024), event("alloc", 16384)]
    left = runs.left(reading(events, allocated=(1024, 8192, 16384)), [2])
    assert left.live == {(0, 8192): (1024, ("/repo/test_a.py", 7, "test_a"))}


def test_the_runs_of_two_devices_have_the_peak_of_their_sum() -> None:
    runs = Runs()
    runs.next(reading([event("alloc", 1024, 1)], [event("alloc", 4096, 2), event("free_requested", 4096, 3)]))
    used = runs.usage(reading([event("free_requested", 1024, 4)], [event("alloc", 4096, 5, 1024)]))
    assert (used.peak, used.peaks, used.allocated) == (1024, {0: 512, 1: 1024}, 1024)
    assert sum(line.bytes_ for line in used.at_peak) == 1024


TWO = """
import sys
import pytest
import torch

@pytest.mark.limit_gpu_memory("2 MiB")
def test_two(gpu_memory):
    loaded = "torch._inductor" in sys.modules
    first = torch.empty(2 << 20, dtype=torch.uint8, device="cuda:0")
    second = torch.empty(1 << 20, dtype=torch.uint8, device="cuda:1")
    assert gpu_memory.peak_bytes == 3 << 20 and gpu_memory.device_peaks == {0: 2 << 20, 1: 1 << 20}
    del first, second
    third = torch.empty(2 << 20, dtype=torch.uint8, device="cuda:1")
    assert gpu_memory.peak_bytes == 3 << 20 and gpu_memory.device_peaks == {0: 2 << 20, 1: 2 << 20}
    # Reading imports nothing, and leaves the import to the program.
    assert not loaded and "torch._inductor" not in sys.modules and "_inductor" in torch._lazy_modules
"""


def test_the_sum_of_two_devices_counts_and_each_has_a_peak(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, TWO, FAKE_GPU_COUNT="2")
    [text] = [text for _, text in ran.tests.values()]
    assert "reached 3.0 MiB" in text and "cuda:0 2.0 MiB, cuda:1 2.0 MiB" in text, ran


LATER = """
import pytest, torch
CALLS = []

@pytest.mark.limit_gpu_leaks("1 MiB")
def test_fails_in_its_third_run():
    CALLS.append(torch.zeros(8, device="cuda").sum().item())
    if len(CALLS) == 3:
        raise ValueError("not again")
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_a_failure_in_a_later_run_says_so(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, LATER)
    assert ran.code == 1 and "this was run 3 of 3, because limit_gpu_leaks repeats the body" in ran.out, ran


WITHOUT = """
import sys
import pytest

@pytest.mark.limit_gpu_memory("1 MiB")
def test_memory(gpu_memory):
    assert gpu_memory.peak_bytes == 0 and gpu_memory.reason

@pytest.mark.limit_gpu_leaks("1 MiB", warmups=5)
def test_leaks(runs=[]):
    runs.append(1)
    assert len(runs) == 1
"""


def test_without_a_device_the_tests_run_and_the_summary_says_so(tmp_path: pathlib.Path) -> None:
    ran = run(tmp_path, WITHOUT, "-W", "error", FAKE_GPU_COUNT="0")
    assert ran.code == 0 and "limits not checked: no CUDA device (2 tests)" in ran.out, ran


def test_without_torch_the_tests_run_and_the_summary_says_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch.py").write_text('raise ModuleNotFoundError("No module named \'torch\'", name="torch")')
    ran = run(tmp_path, WITHOUT, "-W", "error")
    assert ran.code == 0 and "limits not checked: torch is not installed (2 tests)" in ran.out, ran


UNUSED = """
import sys

def test_nothing_of_memctl_is_there(request):
    assert "torch" not in sys.modules
    assert not [name for name in sys.modules if name.startswith("memctl_agent._pytest")]
    assert not [name for name, _ in request.config.pluginmanager.list_name_plugin() if name.startswith("memctl-")]
"""


@pytest.mark.parametrize("is_imported", [False, True])
def test_unused_it_does_nothing(tmp_path: pathlib.Path, is_imported: bool) -> None:
    if is_imported:
        # As under `memctl run`, before pytest begins.
        (tmp_path / "sitecustomize.py").write_text("import memctl_agent")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = run(tmp_path, UNUSED, "-W", "error", "--strict-markers", PYTHONPATH=path)
    assert ran.code == 0 and "memctl" not in ran.out, ran


@pytest.mark.parametrize(
    ("marker", "named"),
    [
        ("limit_gpu_memory('2 gigs')", "limit_gpu_memory of test_suite.py::test_it: '2 gigs' is not an amount"),
        ("limit_gpu_memory('2')", "'2' is not an amount"),
        ("limit_gpu_memory(-1)", "-1 is not an amount"),
        ("limit_gpu_memory", "its arguments are (limit)"),
        ("limit_gpu_leaks('1 MiB', warmup=3)", "its arguments are (limit, warmups=2)"),
        ("limit_gpu_leaks('1 MiB', warmups='two')", "warmups is a number of runs"),
    ],
)
def test_bad_values_are_usage_errors(tmp_path: pathlib.Path, marker: str, named: str) -> None:
    ran = run(tmp_path, f"import pytest\n@pytest.mark.{marker}\ndef test_it(): pass\n")
    assert ran.code == pytest.ExitCode.USAGE_ERROR and named in ran.out, ran
    assert '"2 GiB", "64 KiB"' in ran.out or "warmups is" in ran.out, ran
