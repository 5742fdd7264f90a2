"""A live job that leaks raises its alert while it runs, and a run of the repaired script resolves it.

Four ranks of genuine torch under `memctl run`, a real daemon, the real Alertmanager (Debian's package). Never
skipped: without Alertmanager the test fails and says how to get it.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Optional

import pytest

from conftest import LIMIT_S, Daemon, Memctl

RANKS = 4
EPOCHS = 8
# Epochs come from the data loader, phases from `model.eval()` and the optimizer: the script does not call memctl.
SCRIPT = """
import contextlib, os, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
import small

FIXED = "FIXED" in os.environ
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(rank)
layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
layers += [torch.nn.Linear(256, 8)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(96, 64), torch.randn(96, 8)), batch_size=16)
held_out = DataLoader(TensorDataset(torch.randn(512, 64), torch.randn(512, 8)), batch_size=256)
losses = []

def validate():
    model.eval()
    with torch.no_grad() if FIXED else contextlib.nullcontext():
        for x, y in held_out:
            loss = (model.module(x.cuda()) - y.cuda()).square().mean()
            losses.append(loss.item() if FIXED else loss)
    model.train()

for epoch in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x.cuda()) - y.cuda()).square().mean().backward()
        optimizer.step()
    validate()
small.pause("judged")
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def get(url: str) -> Optional[Any]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.loads(answer.read() or b"null")
    except (OSError, ValueError):
        return None


class Alertmanager:
    """The real Alertmanager, in a process and a folder of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        named = os.environ.get("MEMCTL_TEST_ALERTMANAGER")
        program = named or shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
        assert program, "no prometheus-alertmanager on PATH: ./test gets it (Debian's package of that name)"
        folder.mkdir()
        (folder / "config.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = [f"--config.file={folder}/config.yml", f"--storage.path={folder}/data"]
        listen = [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen([program, *flags, *listen], stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while get(f"{self.url}/api/v2/status") is None:
            assert self._process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)

    def active(self) -> list[Any]:
        """Its active alerts, from its own API."""
        return get(f"{self.url}/api/v2/alerts?active=true") or []

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def alertmanager(tmp_path: pathlib.Path) -> Iterator[Alertmanager]:
    running = Alertmanager(tmp_path / "alertmanager")
    yield running
    running.stop()


@pytest.fixture
def daemon(memctl: Memctl, alertmanager: Alertmanager, tmp_path: pathlib.Path) -> Iterator[Daemon]:
    rules = tmp_path / "rules.toml"
    rules.write_text(f'[[receiver]]\nname = "am"\ntype = "alertmanager"\nurl = "{alertmanager.url}"\nresend = "1s"\n')
    memctl.environment["MEMCTL_ALERT_RULES"] = str(rules)
    running = Daemon(memctl)
    yield running
    running.stop()


def leaks(alerts: list[Any]) -> list[Any]:
    return [alert for alert in alerts if alert["labels"]["alertname"] == "MemoryLeak"]


def test_an_alert_while_it_runs_and_its_end_when_the_script_is_repaired(
    memctl: Memctl, script: Any, daemon: Daemon, alertmanager: Alertmanager
) -> None:
    train = script(SCRIPT.replace("EPOCHS", str(EPOCHS)))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [sys.executable, *torchrun, str(train)]
    settings = {"MEMCTL_DAEMON": daemon.url, "FAKE_GPU_COUNT": str(RANKS), "OMP_NUM_THREADS": "1"}

    going = memctl.start_recorded("vit", *command, settings=settings, pausing=True)
    # The job is paused at its last line, so it still runs when the alert arrives.
    going.until(lambda: bool(leaks(alertmanager.active())), "the alert in Alertmanager")
    alert = leaks(alertmanager.active())[0]
    assert going.process.poll() is None, "the alert came while the job ran"
    assert (alert["labels"]["job"], alert["labels"]["kind"]) == ("vit", "eval_graph"), alert
    assert "validate (train.py:" in alert["annotations"]["summary"], alert
    # The first message lacks ranks whose findings came late.
    ranks = f"all (0-{RANKS - 1})"
    going.until(
        lambda: any(alert["annotations"]["ranks"] == ranks for alert in leaks(alertmanager.active())), "all ranks"
    )
    assert memctl("alerts", "--firing", "--daemon", daemon.url).out.count("vit") >= 1
    going.until_paused(*(f"judged{rank}" for rank in range(RANKS)))
    going.go_on("judged")
    leaky = going.wait()
    assert leaky.code == 0, leaky
    assert "validate (train.py:" in memctl("query", "--job", "vit", "--daemon", daemon.url).out
    asserted = memctl("assert", "--job", "vit", "no-leak", "--daemon", daemon.url)
    assert asserted.code == 1 and "does not hold" in asserted.out, asserted
    assert leaks(alertmanager.active()), "a job that ended with its leak has not been repaired"

    fixed = memctl("run", "--job", "vit", "--", *command, **settings, FIXED="1")
    assert fixed.code == 0, fixed
    deadline = time.monotonic() + LIMIT_S
    while leaks(alertmanager.active()):
        assert time.monotonic() < deadline, memctl("query", "--job", "vit", "--daemon", daemon.url)
        time.sleep(0.1)
    held = memctl("assert", "--job", "vit", "no-leak", "stable", "--after-epoch", "1", "--daemon", daemon.url)
    assert held.code == 0 and "does not hold" not in held.out, held
