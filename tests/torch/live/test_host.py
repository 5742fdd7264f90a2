"""Memory of the host that grows while a job trains: in the training process, and in its data loader's workers.

The programs are paced and run at the same time: host memory is sampled once a second, so growth has to last to be
reported.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from conftest import Going, Memctl

MIB = 1 << 20
# The program writes to what it keeps: pages that were never written take no memory.
TRAINER = """
import time
import torch
import small

training = small.Training()
kept = []

def remember():
    kept.append(bytearray(b"x") * (8 << 20))

for number in range(90):
    training.step()
    remember()
    time.sleep(0.2)
"""

WORKERS = """
import time
import torch
from torch.utils.data import DataLoader, Dataset
import small

class Data(Dataset):
    def __init__(self):
        self.kept = []

    def __len__(self):
        return 110

    def __getitem__(self, index):
        self.kept.append(bytearray(b"x") * (7 << 20))
        time.sleep(0.3)
        return torch.randn(8, 32)

if __name__ == "__main__":
    training = small.Training()
    for batch in DataLoader(Data(), batch_size=None, num_workers=2):
        training.step(batch)
    # The workers are gone when the training is measured for the last time.
    time.sleep(2.5)
    training.step()
"""
PROGRAMS = {"trainer": TRAINER, "workers": WORKERS}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Memctl]:
    """Every program's store."""
    started: dict[str, tuple[Memctl, Going]] = {}
    for name, source in PROGRAMS.items():
        memctl = Memctl(tmp_path_factory.mktemp(name))
        script = memctl.folder / "train.py"
        script.write_text(source)
        settings = {"OMP_NUM_THREADS": "1"}
        started[name] = (memctl, memctl.start_recorded(name, sys.executable, str(script), settings=settings))
    runs = {name: going.wait() for name, (_, going) in started.items()}
    failed = {name: run for name, run in runs.items() if run.code != 0}
    assert not failed, failed
    return {name: memctl for name, (memctl, _) in started.items()}


def growth(memctl: Memctl, job: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one finding, which is growth of host memory, and the rank in the response."""
    report = memctl.answer("query", "--job", job)
    found = [finding for finding in report["findings"] if finding["severity"] != "info"]
    assert [finding["kind"] for finding in found] == ["host_growth"], found
    [rank] = report["ranks"]
    return found[0], rank


def test_a_training_process_that_grows(jobs: dict[str, Memctl]) -> None:
    found, rank = growth(jobs["trainer"], "trainer")
    assert found["subject"] == "training process" and found["processes"] == ["rank 0"], found
    assert found["title"].startswith("Host memory of the training process has grown by"), found
    assert 384 * MIB <= found["live_bytes"] <= rank["highest"]["host_rss_bytes"], (found, rank)


def test_data_loader_workers_that_grow(jobs: dict[str, Memctl]) -> None:
    memctl = jobs["workers"]
    found, rank = growth(memctl, "workers")
    assert found["subject"] == "data loader workers" and found["processes"] == ["rank 0"], found
    assert found["title"].startswith("Host memory of the data loader workers has grown by"), found
    # The figures are those during the work, and not those after it.
    assert rank["highest"]["children_rss_bytes"] >= 2 * 384 * MIB, rank
    assert 384 * MIB <= found["live_bytes"] <= rank["highest"]["children_rss_bytes"], (found, rank)
    page = memctl("query", "--job", "workers")
    lines = page.out.splitlines()
    heads = [number for number, line in enumerate(lines) if line.endswith("ITS CHILDREN")]
    assert len(heads) == 1 and not lines[heads[0] + 1].endswith(" 0 B"), page
