"""Out of memory: the record has the failing request with its stack, free bytes, the state after it, the other ranks.

Checked against what the script is known to request, and against PyTorch's own message.
"""

from __future__ import annotations

import pathlib
import pickle
import sys
from typing import Any

from conftest import Memctl, Plain, both, own_trace, same

SPAWNER = """
import os, subprocess, sys
environment = lambda rank: {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env=environment(rank)) for rank in range(2)]
codes = [rank.wait() for rank in ranks]
print("codes", *codes)
sys.exit(max(codes))
"""
SCRIPT = """
import os
import torch
import small

def greedy(training):
    training.leak(600 << 20)

training = small.Training()
training.steps(5)
small.pause("half")
if os.environ.get("RANK", "0") == "0":
    for _ in range(10):
        greedy(training)
training.steps(5)
training.report()
"""
CAUGHT = """
import torch
import small
training = small.Training()
for number in range(3):
    training.steps(5)
    try:
        training.leak(10 << 30)
    except torch.OutOfMemoryError:
        print("caught", number, flush=True)
training.report()
"""
SMALL_GPU = {"FAKE_GPU_MIB": "2048"}
ASKED = 600 << 20


def test_unhandled(memctl: Memctl, script: Any, plain: Plain, tmp_path: pathlib.Path) -> None:
    path = script(SCRIPT)
    spawner = script(SPAWNER, "spawner.py")
    settings = {**SMALL_GPU, "FAKE_GPU_STATE": ""}
    run, expected = both(
        lambda: memctl.record("oom", sys.executable, str(spawner), str(path), **settings),
        lambda: plain(memctl, spawner, str(path), **settings),
    )
    same(expected, run)
    assert "codes 1 0" in run.out and "OutOfMemoryError" in run.err, run
    answer = memctl.answer("query", "--job", "oom")
    ranks = {rank["rank"]: rank for rank in answer["ranks"]}
    failure = ranks[0]["failure"]
    assert failure.startswith("out of memory: CUDA out of memory. Tried to allocate 600.00 MiB"), failure
    assert ranks[0]["state"] == "failed" and ranks[0]["ooms"] == 1 and ranks[1]["state"] == "finished"
    # The request, with the device's free bytes.
    ooms = [event for event in memctl.events("oom", 0) if event[0] == "oom"]
    assert len(ooms) == 1 and ooms[0][1] == ASKED, ooms
    assert 0 < ooms[0][2] < ASKED, ooms
    # Its stack, as PyTorch's own viewer sees it, and the state after it.
    viz = tmp_path / "oom.pickle"
    exported = memctl("export", "--job", "oom", "--rank", "0", "--format", "memory-viz", "-f", str(viz))
    assert exported.code == 0, exported
    with viz.open("rb") as file:
        snapshot = pickle.load(file)
    [oom] = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "oom"]
    assert "greedy" in [frame["name"] for frame in oom["frames"]], oom
    assert oom["size"] == ASKED and own_trace([oom])[0][2] == ooms[0][2]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert len([block for block in blocks if block["size"] == ASKED and block["state"] == "active_allocated"]) == 3
    # The moment itself, on both ranks.
    at = moment_of(memctl, tmp_path)
    sites = memctl.answer("sites", "--job", "oom", "--at", at)
    asked = {rank["rank"]: rank for rank in sites["ranks"]}
    assert set(asked) == {0, 1} and asked[0]["exact"], sites
    greedy = [site for site in asked[0]["sites"] if "greedy" in [frame["function"] for frame in site["stack"]]]
    assert sum(site["live_bytes"] for site in greedy) == 3 * ASKED, asked[0]
    timeline = memctl.answer("timeline", "--job", "oom")
    assert {rank["rank"] for rank in timeline["ranks"]} == {0, 1}
    assert ranks[0]["device_total_bytes"] == 2048 << 20


def moment_of(memctl: Memctl, folder: pathlib.Path) -> str:
    """The time of the request that failed."""
    import csv

    with (folder / "oom-0.csv").open() as lines:
        return next(row["at"] for row in csv.DictReader(lines) if row["action"] == "oom")


def test_caught(memctl: Memctl, script: Any, plain: Plain) -> None:
    path = script(CAUGHT)
    run, expected = both(
        lambda: memctl.record("caught", sys.executable, str(path), **SMALL_GPU),
        lambda: plain(memctl, path, **SMALL_GPU),
    )
    same(expected, run)
    assert run.code == 0 and run.out.count("caught") == 3, run
    [rank] = memctl.answer("query", "--job", "caught")["ranks"]
    assert rank["ooms"] == 3 and rank["failure"] is None and rank["state"] == "finished" and rank["steps"] == 15, rank
    assert [event[1] for event in memctl.events("caught") if event[0] == "oom"] == [10 << 30] * 3
