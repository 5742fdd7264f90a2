"""The form `short` hides private parent folders, and `hashed` hides all private names, in responses and exports.

The same training is recorded in each form, under the launcher and by a process that attaches by itself. The form `full`
shows that the check finds the names where they are present.
"""

from __future__ import annotations

import pathlib
import pickle
import sys
from typing import Any

import pytest

from conftest import Daemon, Memctl, Run

NETWORK = """
import torch

class SecretNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512, device="cuda")
        self.kept = []

    def forward(self, batch):
        self.kept.append(torch.empty(1 << 20, device="cuda"))
        return self.layer(batch)
"""

TRAINING = """
import sys, torch
import memctl_agent
if len(sys.argv) > 1:
    memctl_agent.attach(job=sys.argv[1], daemon=sys.argv[2])
from secretlab.secret_net import SecretNet
network = SecretNet()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for number in range(4):
    with memctl_agent.epoch(number):
        network(torch.ones(8, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
open("/srv/secretlab/weights 1.bin")
"""


@pytest.fixture
def training(tmp_path: pathlib.Path) -> pathlib.Path:
    lab = tmp_path / "lab-of-ann"
    (lab / "secretlab").mkdir(parents=True)
    (lab / "secretlab" / "__init__.py").touch()
    (lab / "secretlab" / "secret_net.py").write_text(NETWORK)
    (lab / "secret_train.py").write_text(TRAINING)
    return lab / "secret_train.py"


def all_output(memctl: Memctl, job: str, *where: str) -> str:
    """The responses of six queries about a job, and its export, as text."""
    answers: list[Any] = [memctl.answer("jobs", *where)]
    for question in (["query"], ["leaks", "--all"], ["sites", "--end", "--all-frames"], ["diagnose"], ["timeline"]):
        answers.append(memctl.answer(*question, "--job", job, *where))
    exported = memctl.folder / f"{job}.pickle"
    done = memctl("export", "--job", job, "--rank", "0", "--format", "memory-viz", "-f", str(exported), *where)
    assert done.code == 0, done
    answers.append(pickle.loads(exported.read_bytes()))
    return repr(answers)


def check(form: str, text: str, run: Run) -> None:
    assert "FileNotFoundError: [Errno 2] No such file or directory: " in text, (text[:2000], run)
    assert "forward" in text and "/site-packages/torch/nn/modules/linear.py" in text, (text[:2000], run)
    if form == "full":
        assert "/lab-of-ann/secretlab/secret_net.py" in text and "/srv/secretlab/weights 1.bin" in text, text[:2000]
    else:
        assert "lab-of-ann" not in text and "/srv/" not in text, text[:2000]
        assert ("secretlab/secret_net.py" in text) == (form == "short"), text[:2000]
        assert ("secret" in text) == (form == "short"), text[:2000]


@pytest.mark.parametrize("form", ["full", "short", "hashed"])
def test_private_names_are_hidden_under_the_launcher(memctl: Memctl, training: pathlib.Path, form: str) -> None:
    # In the training's folder: short paths begin at the launcher's working directory.
    argv = memctl.argv("run", "--job", "named", "--source-paths", form, "--", sys.executable, str(training))
    run = memctl.start(["env", "-C", str(training.parent), *argv], {}).wait()
    assert run.code == 1, run
    check(form, all_output(memctl, "named"), run)


@pytest.mark.parametrize("form", ["full", "short", "hashed"])
def test_private_names_are_hidden_where_a_process_attaches_by_itself(
    memctl: Memctl, training: pathlib.Path, form: str
) -> None:
    daemon = Daemon(memctl)
    try:
        argv = ["env", "-C", str(training.parent), sys.executable, str(training), "named", daemon.url]
        run = memctl.start(argv, {"MEMCTL_SOURCE_PATHS": form}).wait()
        assert run.code == 1, run
        text = all_output(memctl, "named", "--daemon", daemon.url)
    finally:
        daemon.stop()
    check(form, text, run)


def test_nothing_is_recorded_where_names_cannot_be_hidden_as_asked(memctl: Memctl, training: pathlib.Path) -> None:
    daemon = Daemon(memctl)
    try:
        settings = {"MEMCTL_SOURCE_PATHS": "hidden"}
        argv = ["env", "-C", str(training.parent), sys.executable, str(training), "named", daemon.url]
        run = memctl.start(argv, settings).wait()
        assert run.code == 1 and "full, short or hashed" in run.err, run
        assert memctl.answer("jobs", "--daemon", daemon.url)["jobs"] == []
    finally:
        daemon.stop()
