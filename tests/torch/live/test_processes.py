"""Every process of a job: a trainer with workers, a model over two devices, pytest's workers, a rank on a wrong device.

The programs are typical: `multiprocessing` with spawn, `torch.nn.Module`s on `cuda:0` and `cuda:1`, pytest-xdist,
torchrun. Each is recorded by the real `memctl run` and queried with the real command line.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from conftest import Memctl

WORKERS = """
import multiprocessing, sys
import memctl_agent, torch

KIB = 1 << 10

def work(leaks, epochs=12, steps=20):
    model = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for epoch in range(epochs):
        with memctl_agent.epoch(epoch):
            for step in range(steps):
                optimizer.zero_grad()
                model(torch.empty(8, 256, device="cuda")).sum().backward()
                optimizer.step()
                if leaks:
                    kept.append(torch.empty(64 * KIB, device="cuda"))  # the leak
    torch.cuda.synchronize()

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=work, args=(index == 1,)) for index in range(2)]
    for worker in workers:
        worker.start()
    work(False)
    for worker in workers:
        worker.join()
    sys.exit(max(worker.exitcode for worker in workers))
"""

SPLIT = """
import torch

first = torch.nn.Linear(256, 256, device="cuda:0")
second = torch.nn.Linear(256, 256, device="cuda:1")
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
kept = []
for step in range(100):
    optimizer.zero_grad()
    hidden = first(torch.empty(8, 256, device="cuda:0")).to("cuda:1")
    second(hidden).sum().backward()
    optimizer.step()
    kept.append(torch.empty(2048, device="cuda:1"))  # the list
"""

PARALLEL = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(256, 512), torch.nn.Linear(512, 8)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        if x.get_device() == 1:
            seen.append(hidden.detach().clone())  # the leak
        return self.second(hidden)

seen = []
model = torch.nn.DataParallel(Model().cuda())
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(96, 256)), batch_size=16)
for epoch in range(8):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch.cuda()).square().mean().backward()
        optimizer.step()
"""

STRAY = """
import os
import torch

rank = int(os.environ["LOCAL_RANK"])
device = f"cuda:{rank}"
model = torch.nn.Linear(1024, 1024, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
table = torch.empty(1 << 20, device="cuda:0")  # meant for its own
for step in range(40):
    optimizer.zero_grad()
    model(torch.empty(64, 1024, device=device)).sum().backward()
    optimizer.step()
"""

SUITE = """
import pytest
import torch

@pytest.mark.parametrize("size", range(1, 9))
def test_adds(size):
    tensor = torch.empty(size << 20, device="cuda")
    assert (tensor + tensor).shape == tensor.shape
"""


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


def names(report: Any) -> list[str]:
    return [process["process"] for process in report["processes"]]


def check_counts(report: Any) -> None:
    """The report counts the events of every process, and their sum is the number of stored events."""
    events = sum(process["events"] for process in report["processes"])
    assert all(process["events"] > 0 for process in report["processes"]), report["processes"]
    assert report["completeness"]["exact"], report["completeness"]
    assert report["completeness"]["events_stored"] == report["job"]["events"] == events


def test_a_trainer_and_two_workers(memctl: Memctl, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    run = memctl.record("workers", sys.executable, str(script))
    assert run.code == 0, run
    report = memctl.answer("query", "--job", "workers")
    assert sorted(names(report)) == ["trainer", "worker-1", "worker-2"], report["processes"]
    check_counts(report)
    leaks = memctl.answer("leaks", "--job", "workers")
    leak = next(finding for finding in leaks["findings"] if finding["severity"] != "info")
    assert leak["site"]["line"] == line_of(WORKERS, "# the leak"), leak
    [name] = leak["processes"]
    assert name.startswith("worker-") and f"on {name} (not on trainer, " in leak["title"], leak
    narrowed = memctl.answer("query", "--job", "workers", "--process", name)
    assert names(narrowed) == [name] and narrowed["findings"], narrowed
    trainer = memctl.answer("query", "--job", "workers", "--process", "trainer")
    assert names(trainer) == ["trainer"] and not trainer["findings"], trainer
    page = memctl("query", "--job", "workers")
    assert page.code == 0 and all(name in page.out for name in names(report)), page


def test_a_model_over_two_devices(memctl: Memctl, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "split.py"
    script.write_text(SPLIT)
    run = memctl.record("split", sys.executable, str(script), FAKE_GPU_COUNT="2")
    assert run.code == 0, run
    report = memctl.answer("query", "--job", "split")
    assert [process["devices"] for process in report["processes"]] == [[0, 1]], report["processes"]
    check_counts(report)
    assert not any(finding["kind"] == "unjudged" for finding in report["findings"]), report["findings"]
    second = memctl.answer("query", "--job", "split", "--device", "1")
    assert [rank["device"] for rank in second["ranks"]] == [1]
    for page in ("query", "leaks", "ranks", "frag", "oom", "ledger", "diagnose", "timeline", "sites"):
        shown = memctl(page, "--job", "split")
        assert shown.code == 0 and "panicked" not in shown.err, (page, shown)


def test_data_parallel_over_two_devices(memctl: Memctl, tmp_path: pathlib.Path) -> None:
    """Replicas run in threads of one process: the finding names the device and the line within the replica."""
    script = tmp_path / "parallel.py"
    script.write_text(PARALLEL)
    run = memctl.record("parallel", sys.executable, str(script), FAKE_GPU_COUNT="2")
    assert run.code == 0, run
    report = memctl.answer("query", "--job", "parallel")
    assert [process["devices"] for process in report["processes"]] == [[0, 1]], report["processes"]
    check_counts(report)
    devices = {rank["device"]: rank for rank in report["ranks"]}
    assert sorted(devices) == [0, 1], devices
    assert all((rank["epochs"], rank["steps"]) == (8, 48) for rank in devices.values()), devices
    assert devices[0]["growth_bytes_per_epoch"] == 0 < devices[1]["growth_bytes_per_epoch"], devices
    [leak] = [finding for finding in report["findings"] if finding["severity"] != "info"]
    assert (leak["kind"], leak["ranks"], leak["site"]["line"]) == ("leak", [0], line_of(PARALLEL, "# the leak")), leak
    assert "on device 1 of rank 0, allocated in Model.forward (parallel.py:" in leak["title"], leak
    for device, findings in ((0, []), (1, [leak["id"]])):
        narrowed = memctl.answer("leaks", "--job", "parallel", "--device", str(device))
        assert [finding["id"] for finding in narrowed["findings"]] == findings, (device, narrowed)
    page = memctl("query", "--job", "parallel").out.splitlines()
    heads = [number for number, line in enumerate(page) if line.startswith("RANK  DEVICE ")]
    assert [page[head + row].split()[:2] for head in heads for row in (1, 2)] == [["0", "0"], ["0", "1"]] * 2, page


def test_a_rank_on_the_wrong_device(memctl: Memctl, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "stray.py"
    script.write_text(STRAY)
    run = memctl.record_ranks("stray", 2, script)
    assert run.code == 0, run
    report = memctl.answer("query", "--job", "stray")
    found = [finding for finding in report["findings"] if finding["kind"] == "wrong_device"]
    assert len(found) == 1 and found[0]["ranks"] == [1], report["findings"]
    assert found[0]["site"]["line"] == line_of(STRAY, "# meant for its own")
    assert found[0]["title"].startswith("Rank 1 allocates on device 0 (stray.py:"), found[0]
    assert not any(finding["kind"] == "foreign_process" for finding in report["findings"]), report["findings"]


def test_the_workers_of_pytest(memctl: Memctl, tmp_path: pathlib.Path) -> None:
    suite = tmp_path / "suite" / "test_suite.py"
    suite.parent.mkdir()
    suite.write_text(SUITE)
    run = memctl.record("suite", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", str(suite))
    assert run.code == 0, run
    report = memctl.answer("query", "--job", "suite")
    assert len(report["processes"]) == 2 and len(set(names(report))) == 2, report["processes"]
    check_counts(report)
