"""Allocators that cannot be observed: the rest is recorded, one line has the reason, and the training is unaffected.

A hook that cannot be compiled, an allocator without events, no caching allocator at all, stacks switched off.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

from conftest import Memctl, Plain, Run, both, same

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import small
training = small.Training()
data = DataLoader(TensorDataset(torch.randn(40, 32)), batch_size=8)
for epoch in range(4):
    for (batch,) in data:
        training.step(batch)
    training.leak(3 << 20)
    small.tell(f"allocated-{epoch}", torch.cuda.memory_allocated())
small.tell("status", small.status())
if "PYTORCH_NO_CUDA_MEMORY_CACHING" in __import__("os").environ:
    print("result", training.digest.hexdigest())
else:
    training.report()
"""
EPOCHS = 4


def record(memctl: Memctl, plain: Plain, path: pathlib.Path, job: str, **settings: str) -> Run:
    recorded, expected = both(
        lambda: memctl.record(job, sys.executable, str(path), **settings),
        lambda: plain(memctl, path, **settings),
    )
    same(expected, recorded)
    assert recorded.code == 0
    return recorded


def level_line(run: Run) -> str:
    """The message of the process when it attached; the launcher repeats it at the end."""
    first, last = [line for line in run.lines() if "level" in line]
    assert "no allocator events were recorded" in last and "no allocator events were recorded" not in first, run
    return first


def test_a_hook_that_cannot_be_compiled(memctl: Memctl, script: Any, plain: Plain, tmp_path: pathlib.Path) -> None:
    empty = tmp_path / "empty-cache"
    run = record(memctl, plain, script(SCRIPT), "uncompiled", CXX="/bin/false", MEMCTL_CACHE=str(empty))
    # The compiler was really called, and its output is kept.
    assert list(empty.glob("shim/*.log")) and not list(empty.glob("shim/*.so")), list(empty.rglob("*"))
    assert run.reported("status")["level"] == "blocks"
    line = level_line(run)
    assert "level blocks" in line and "could not compile the shim" in line and ".log" in line, line
    answer = memctl.answer("query", "--job", "uncompiled")
    [rank] = answer["ranks"]
    assert rank["state"] == "finished" and rank["epochs"] == EPOCHS and rank["steps"] == 5 * EPOCHS, rank
    ends = {end["epoch"]: end["allocated_bytes"] for end in rank["epoch_ends"]}
    # The counters of the block snapshots and those that the loop itself read differ by its allocations in between.
    for epoch in range(1, EPOCHS):
        assert ends[epoch] - ends[epoch - 1] == 3 << 20, ends
    assert rank["growth_bytes_per_epoch"] == 3 << 20, rank


def test_cuda_malloc_async(memctl: Memctl, script: Any, plain: Plain) -> None:
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    run = record(memctl, plain, script(SCRIPT), "async", **conf)
    assert run.reported("status")["level"] == "blocks"
    line = level_line(run)
    assert "cudaMallocAsync" in line and "remove `backend:cudaMallocAsync`" in line, line
    [rank] = memctl.answer("query", "--job", "async")["ranks"]
    assert rank["steps"] == 5 * EPOCHS and rank["epochs"] == EPOCHS and rank["failure"] is None, rank


def test_no_caching(memctl: Memctl, script: Any, plain: Plain) -> None:
    run = record(memctl, plain, script(SCRIPT), "uncached", PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    line = level_line(run)
    assert "level off" in line and "PYTORCH_NO_CUDA_MEMORY_CACHING is set" in line and "unset it" in line, line
    [rank] = memctl.answer("query", "--job", "uncached")["ranks"]
    assert rank["events"] == 0 and rank["steps"] == 5 * EPOCHS and rank["failure"] is None, rank


@pytest.mark.parametrize("stacks", ["0", "1"])
def test_stacks_can_be_left_out(memctl: Memctl, script: Any, plain: Plain, stacks: str) -> None:
    run = record(memctl, plain, script(SCRIPT), "stackless", MEMCTL_STACKS=stacks)
    level = {"0": "no-stacks", "1": "full"}[stacks]
    assert run.reported("status")["level"] == level and not [line for line in run.lines() if "level" in line], run
    [rank] = memctl.answer("sites", "--job", "stackless", "--end")["ranks"]
    assert any(site["stack"] for site in rank["sites"]) is (stacks == "1"), rank
    [rank] = memctl.answer("query", "--job", "stackless")["ranks"]
    assert rank["events"] > 1000 and rank["growth_bytes_per_epoch"] == 3 << 20
