"""The suite that `test_pytest_plugin` runs: tests that the plugin has to fail, and tests that it must not fail."""

import collections
import functools
import unittest
from typing import ClassVar

import pytest
import torch

MIB = 1 << 20
KEPT, CACHE = [], {}
WINDOW = collections.deque(maxlen=1)
REPLACED = collections.deque(maxlen=1)
RUNS = collections.Counter()


def empty(size, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def remember(size=MIB):
    KEPT.append(empty(size))


class Holder:
    tensors: ClassVar[list] = []


@functools.cache
def cached(number):
    return torch.empty(MIB + number, dtype=torch.uint8, device="cuda")


# -- planted


@pytest.mark.limit_gpu_memory("2 MiB")
def test_peak_over():
    first = empty(2 * MIB)
    second = empty(1)  # over
    del first, second


@pytest.mark.limit_gpu_memory(2 * MIB - 1)
def test_peak_over_in_bytes():
    empty(2 * MIB)


@pytest.mark.limit_gpu_leaks("64 KiB")
def test_leak_list():
    remember()


@pytest.mark.limit_gpu_leaks("64 KiB", warmups=1)
def test_leak_class():
    Holder.tensors.append(empty(MIB))


@pytest.mark.limit_gpu_leaks(0)
@pytest.mark.parametrize("number", [1, 2])
def test_leak_dict(number):
    CACHE[number, len(CACHE)] = empty(512)


@pytest.mark.limit_gpu_leaks("64 KiB", warmups=0)
def test_leak_first_run():
    cached(3)


@pytest.mark.limit_gpu_leaks(0)
def test_leak_that_garbage_would_hide():
    cycle = [empty(4 * MIB)]
    cycle.append(cycle)
    remember(512)


@pytest.mark.limit_gpu_memory("1 KiB")
class TestClosest:
    def test_of_the_class(self):
        empty(2048)

    @pytest.mark.limit_gpu_memory("2 KiB")
    def test_of_the_function(self):
        empty(2048)


class TestUnit(unittest.TestCase):
    @pytest.mark.limit_gpu_memory("1 MiB")
    def test_unit_peak(self):
        empty(2 * MIB)

    @pytest.mark.limit_gpu_leaks("1 KiB")
    def test_unit_leak(self):
        remember()

    @pytest.mark.limit_gpu_leaks("1 KiB")
    def test_unit_fails(self):
        raise ValueError("by itself")

    @pytest.mark.limit_gpu_leaks("1 KiB")
    def test_unit_clean(self):
        empty(MIB)


@pytest.mark.xfail(strict=True)
@pytest.mark.limit_gpu_memory("1 MiB")
def test_expected():
    empty(2 * MIB)


# -- clean


@pytest.mark.limit_gpu_memory("2 MiB")
def test_peak_fits():
    for _ in range(8):
        empty(2 * MIB)


@pytest.fixture
def weights():
    return empty(64 * MIB)


@pytest.mark.limit_gpu_memory("1 MiB")
@pytest.mark.limit_gpu_leaks("1 KiB")
def test_fixtures_do_not_count(weights):
    empty(MIB)


@pytest.mark.limit_gpu_leaks("1 KiB")
def test_a_cycle_is_no_leak():
    cycle = [empty(MIB)]
    cycle.append(cycle)


@pytest.mark.limit_gpu_leaks(0)
def test_a_bounded_cache_is_no_leak():
    WINDOW.append(empty(MIB))


@pytest.mark.limit_gpu_leaks(0)
def test_skips():
    pytest.skip("no limit is checked")


@pytest.mark.limit_gpu_leaks(0)
def test_a_cache_that_the_warm_up_fills():
    cached(1)


@pytest.mark.limit_gpu_leaks("64 KiB")
@pytest.mark.limit_gpu_memory("256 MiB")
def test_training():
    model = torch.nn.Linear(64, 64).cuda()
    moments = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        with torch.no_grad():
            for parameter, moment in zip(model.parameters(), moments):
                parameter -= moment.mul_(0.9).add_(parameter.grad)


# -- torch's own figures


@pytest.mark.limit_gpu_memory("64 MiB")
def test_own_peaks_stay():
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() == start
    empty(8 * MIB)
    assert torch.cuda.max_memory_allocated() == start + 8 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == start


@pytest.mark.limit_gpu_memory("4 MiB")
def test_a_reset_hides_no_peak():
    empty(8 * MIB)
    torch.cuda.reset_peak_memory_stats()


@pytest.mark.limit_gpu_memory("1 MiB")
def test_own_history():
    torch.cuda.memory._record_memory_history(max_entries=10)
    empty(2 * MIB)
    [*_, last] = torch.cuda.memory._snapshot()["device_traces"][0]
    assert last["action"] == "free_completed"
    torch.cuda.memory._record_memory_history(None)


# -- the fixture


def test_fixture(gpu_memory):
    assert gpu_memory.reason is None and gpu_memory.peak_bytes == 0
    kept = empty(MIB)
    empty(2 * MIB)
    assert gpu_memory.peak_bytes == 3 * MIB and gpu_memory.allocated_bytes == MIB
    assert gpu_memory.device_peaks == {0: 3 * MIB}
    [line] = gpu_memory.top_lines()
    assert (line.bytes, line.blocks, line.function) == (3 * MIB, 2, "empty") and line.file == __file__
    gpu_memory.reset()
    assert gpu_memory.peak_bytes == MIB
    empty(MIB)
    assert gpu_memory.peak_bytes == 2 * MIB
    del kept
    assert gpu_memory.allocated_bytes == 0


# -- several runs


@pytest.mark.limit_gpu_memory("2 MiB")
@pytest.mark.limit_gpu_leaks("64 KiB")
def test_runs_fill_a_cache(gpu_memory):
    if "runs" not in CACHE:
        CACHE["runs"] = empty(8 * MIB)


@pytest.mark.limit_gpu_memory("2 MiB")
@pytest.mark.limit_gpu_leaks("64 KiB")
def test_runs_begin_with_scratch():
    RUNS["scratch"] += 1
    if RUNS["scratch"] == 1:
        empty(8 * MIB)


@pytest.mark.limit_gpu_memory("2 MiB")
@pytest.mark.limit_gpu_leaks("1 MiB")
def test_runs_add_up():
    remember()


@pytest.mark.limit_gpu_leaks("64 KiB")
def test_runs_end_early():
    RUNS["early"] += 1
    if RUNS["early"] == 2:
        empty(2 * MIB)
        raise ValueError("by itself")
    remember()


@pytest.mark.limit_gpu_memory("2 MiB")
@pytest.mark.limit_gpu_leaks(0)
def test_runs_replace_a_block():
    REPLACED.append(empty(MIB))


@pytest.mark.limit_gpu_memory("1 MiB")
@pytest.mark.limit_gpu_leaks(0)
def test_runs_leave_garbage():
    cycle = [empty(MIB)]
    cycle.append(cycle)


@pytest.mark.limit_gpu_leaks("1 MiB", warmups=1)
def test_runs_begin_at_zero(gpu_memory):
    assert gpu_memory.peak_bytes == 0
    remember()
    empty(MIB)
    assert gpu_memory.peak_bytes == 2 * MIB and gpu_memory.allocated_bytes == MIB
    gpu_memory.reset()


# -- beside pytest-memray


@pytest.mark.limit_memory("64 MB")
@pytest.mark.limit_gpu_memory("1 MiB")
def test_beside_memray_gpu():
    empty(2 * MIB)


@pytest.mark.limit_memory("1 MB")
@pytest.mark.limit_gpu_memory("64 MiB")
def test_beside_memray_host():
    bytearray(8 * MIB)
