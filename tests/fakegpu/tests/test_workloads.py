"""The training scenarios run on two ranks, and their counters show the course that each was written for.

Sizes, addresses and stacks are genuine; losses are garbage, and the workspaces of cuBLAS are not a real GPU's.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import sys
from typing import Any

import pytest

from conftest import HERE, execute

RANKS = 2  # a leak on rank 0 alone needs another one
MIB = 1 << 20
FOLDER = pathlib.Path(os.environ.get("MEMCTL_WORKLOADS") or HERE.parents[1] / "workloads")

Reports = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """The output of each rank, by scenario."""
    out = tmp_path_factory.mktemp("recordings")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    settings = {"REC_OUT": str(out), "FAKE_GPU_COUNT": str(RANKS), "MEMCTL_WORKLOADS": str(FOLDER)}
    execute([*command, str(HERE / "scenarios.py")], FAKE_GPU_STATE=str(out / "gpus"), **settings)
    return {
        folder.name: [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
        for folder in out.iterdir()
        if folder.is_dir()
    }


def growth(report: dict[str, Any], field: str = "allocated") -> list[int]:
    """Bytes by which each epoch's end differs from the one before, from the second on: the first warms up."""
    ends = [epoch[field] for epoch in report["epochs"]][1:]
    return [after - before for before, after in zip(ends, ends[1:])]


def usual(report: dict[str, Any]) -> float:
    """The median of the growth: Python's collector may free an earlier scenario's leftovers at any time."""
    return statistics.median(growth(report))


def test_every_scenario_runs_on_every_rank(reports: Reports) -> None:
    assert len(reports) == 9
    assert all(report["events"] > 1000 for ranks in reports.values() for report in ranks)
    for report in (report for ranks in reports.values() for report in ranks):
        assert all(epoch["device_used"] == epoch["reserved"] for epoch in report["epochs"])


@pytest.mark.parametrize("name", ["gpt_clean", "gpt_varlen_fragmentation", "gpt_curriculum", "lstm_hidden_chain"])
def test_epochs_without_a_leak_end_flat(reports: Reports, name: str) -> None:
    for report in reports[name]:
        assert abs(usual(report)) < MIB, growth(report)


def test_a_kept_graph_leaks_on_every_rank(reports: Reports) -> None:
    for report in reports["gpt_val_graph_leak"]:
        assert 45 * MIB < usual(report) < 55 * MIB, growth(report)


def test_kept_features_leak_on_rank_0_alone(reports: Reports) -> None:
    first, *others = reports["cnn_rank0_cache"]
    assert 2.5 * MIB < usual(first) < 3.5 * MIB, growth(first)
    for report in others:
        assert abs(usual(report)) < MIB, growth(report)


def test_a_moving_average_appears_once(reports: Reports) -> None:
    for report in reports["gpt_ema_step_up"]:
        assert sum(bytes_more > 10 * MIB for bytes_more in growth(report)) == 1


def test_a_growing_sequence_raises_the_peaks(reports: Reports) -> None:
    for report in reports["gpt_curriculum"]:
        peaks = [epoch["peak_allocated"] for epoch in report["epochs"]]
        assert peaks == sorted(peaks) and peaks[-1] > 2 * peaks[0]


def test_fragmentation_reserves_far_more_than_it_needs(reports: Reports) -> None:
    for report in reports["gpt_varlen_fragmentation"]:
        assert report["epochs"][-1]["reserved"] > 10 * report["epochs"][-1]["allocated"]


def test_holes_of_four_mebibytes_cannot_hold_a_gibibyte(reports: Reports) -> None:
    for report in reports["oom_by_fragmentation"]:
        assert report["label"]["oom"]
        assert "Tried to allocate 1024.00 MiB" in report["label"]["message"]
