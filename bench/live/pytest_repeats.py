"""Repeats a mixed set of tests under the pytest plugin and counts wrong outcomes.

    run=$(tests/fakegpu/setup 2.11.0)        # with the wheel and pytest installed
    $run python bench/live/pytest_repeats.py [REPEATS] [CLEAN]     # by default 1,000 of 6 tests, and 200

Planted tests leak one block of 64 KiB or exceed their peak by one block; they have to fail with their line and, if they
leak, with their holder. The others have to pass. Then `CLEAN` tests, each with both limits, have to pass.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

SUITE = """
import pytest
import torch

MIB, KEPT, HELD = 1 << 20, [], {}

def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

def keep():
    KEPT.append(empty(65_536))

class Cache:
    tensors = []

@pytest.fixture(autouse=True)
def cleared():
    yield
    KEPT.clear()
    Cache.tensors.clear()

@pytest.fixture
def weights():
    return empty(8 * MIB)

repeated = pytest.mark.parametrize("number", range(REPEATS))

@repeated
@pytest.mark.limit_gpu_leaks("32 KiB", warmups=1)
def test_planted_list(number):
    keep()

@repeated
@pytest.mark.limit_gpu_leaks(0, warmups=1)
def test_planted_class(number):
    Cache.tensors.append(empty(65_536))

@repeated
@pytest.mark.limit_gpu_memory("2 MiB")
def test_planted_peak(number):
    first, second = empty(2 * MIB), empty(1)

@repeated
@pytest.mark.limit_gpu_memory("2 MiB")
def test_clean_peak(number, weights):
    for _ in range(4):
        empty(2 * MIB)

@repeated
@pytest.mark.limit_gpu_leaks(0, warmups=1)
def test_clean_cycle(number):
    cycle = [empty(MIB)]
    cycle.append(cycle)

@repeated
@pytest.mark.limit_gpu_leaks(0, warmups=1)
@pytest.mark.limit_gpu_memory("1 MiB")
def test_clean_replaced(number):
    HELD["last"] = empty(65_536 + number % 2)

@pytest.mark.parametrize("number", range(CLEAN))
@pytest.mark.limit_gpu_leaks(0)
@pytest.mark.limit_gpu_memory("4 MiB")
def test_clean_training(number):
    weight = torch.ones(32, 32, device="cuda", requires_grad=True)
    for _ in range(2):
        (torch.ones(8, 32, device="cuda") * weight.sum()).exp().sum().backward()
        weight.grad = None
"""

# The million objects of torch and of the collected tests are left out of the collections, which would otherwise take
# most of the time.
CONFTEST = """
import gc

import torch

def pytest_collection_finish():
    torch.empty(1, device="cuda")
    gc.collect()
    gc.freeze()

NEEDED = {"test_planted_list": "list `KEPT`", "test_planted_class": "class `Cache`", "test_planted_peak": ":REPLACED "}

def pytest_runtest_logreport(report):
    name = report.nodeid.split("::")[1]
    needed = NEEDED.get(name.split("[")[0])
    if report.when == "call" and needed:
        is_right = report.failed and needed in report.longreprtext
    else:
        is_right = report.passed
    if report.when == "call":
        print("OUTCOME", name.split("[")[0], "right" if is_right else "wrong", flush=True)
    if not is_right:
        print("WRONG", report.nodeid, report.outcome, report.longreprtext, flush=True)
"""


def main() -> None:
    """Runs them and prints the counts."""
    repeats, clean = (int(word) for word in [*sys.argv[1:3], *("1000", "200")[len(sys.argv) - 1 :]])
    line = 1 + next(number for number, text in enumerate(SUITE.splitlines()) if "return torch.empty" in text)
    with tempfile.TemporaryDirectory() as folder:
        head = f"REPEATS, CLEAN = {repeats}, {clean}"
        Path(folder, "test_repeats.py").write_text(head + SUITE)
        Path(folder, "conftest.py").write_text(CONFTEST.replace("REPLACED", str(line)))
        command = [sys.executable, "-m", "pytest", "-q", "-s", "--tb=no", "-p", "no:cacheprovider", folder]
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    words = [text.split("OUTCOME ")[-1].split() for text in done.stdout.splitlines() if "OUTCOME " in text]
    for (name, outcome), count in sorted(Counter((word[0], word[1]) for word in words).items()):
        print(f"{name:22}{outcome:7}{count:6}")
    wrong = [text for text in done.stdout.splitlines() if "WRONG " in text]
    print(*wrong[:20], sep="\n")
    print(f"{len(words)} tests, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    sys.exit(bool(wrong) or len(words) != 6 * repeats + clean)


if __name__ == "__main__":
    main()
