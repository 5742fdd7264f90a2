"""Several ranks on one host, each on a device of its own, with gloo (which is real) and with the fake NCCL."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from conftest import HERE, execute

RANKS = 4


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_four_ranks_train(backend: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    text = execute(
        [*command, str(HERE / "ddp.py"), backend],
        FAKE_GPU_COUNT=str(RANKS),
        FAKE_GPU_STATE=str(tmp_path / "gpus"),
        TORCH_CPP_LOG_LEVEL="ERROR",
    )
    ranks = [json.loads(line.partition("ANSWER")[2]) for line in text.splitlines() if "ANSWER" in line]
    assert sorted((r["rank"], r["device"]) for r in ranks) == [(i, i) for i in range(RANKS)]
    # each device holds what its own rank reserved: one table for all of them
    assert all(r["used"] == r["reserved"] > 0 for r in ranks)
