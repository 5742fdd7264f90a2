"""The cause of a leak, found in genuine trainings: hooks that pile up, optimizers recreated each epoch, losses kept.

The programs run at the same time, because the import of torch takes most of each one's time. None calls memctl.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from conftest import Going, Memctl

LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import small

training = small.Training()
loader = DataLoader(TensorDataset(torch.randn(80, 32)), batch_size=8)
kept = []
"""

HOOKS = """
def remember(module, inputs, output):
    kept.append(output.detach().clone())

for epoch in range(8):
    training.model[0].register_forward_hook(remember)
    for (batch,) in loader:
        training.step(batch)
"""

# The schedulers of all epochs are kept, and they keep their optimizers.
OPTIMIZERS = """
for epoch in range(8):
    training.optimizer = torch.optim.AdamW(training.model.parameters())
    kept.append(torch.optim.lr_scheduler.StepLR(training.optimizer, 1))
    for (batch,) in loader:
        training.step(batch)
"""

COUNTED = """
for epoch in range(8):
    for (batch,) in loader:
        training.step(batch)
        training.leak(1 << 20)
"""

NETWORK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def layers():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))

loader = DataLoader(TensorDataset(torch.randn(96, 64), torch.randint(0, 8, (96,))), batch_size=8)
"""

# Only the loss is kept: its graph releases the saved tensors when the backward pass ends.
LIGHTNING = """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers, self.losses = layers(), []

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        self.losses.append(loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

lightning.Trainer(
    accelerator="gpu", devices=1, max_epochs=8, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Module(), loader)
"""
PLAIN = """
def training_step(batch):
    inputs, targets = (part.cuda() for part in batch)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    losses.append(loss)
    return loss

model, losses = layers().cuda(), []
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(8):
    for batch in loader:
        loss = training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

PROGRAMS = {
    "hooks": LOOP + HOOKS,
    "optimizers": LOOP + OPTIMIZERS,
    "counted": LOOP + COUNTED,
    "plain": NETWORK + PLAIN,
    "lightning": NETWORK + LIGHTNING,
}


class Recorded:
    """A program's job: its findings of severity warning or higher, and queries about it."""

    def __init__(self, memctl: Memctl, job: str) -> None:
        self.memctl, self.job = memctl, job
        report = memctl.answer("query", "--job", job)
        [self.rank] = report["ranks"]
        self.not_judged = report["not_judged"]
        self.findings = [finding for finding in report["findings"] if finding["severity"] != "info"]

    def leak(self) -> dict[str, Any]:
        """The one finding, which is a leak."""
        assert [finding["kind"] for finding in self.findings] == ["leak"], self.findings
        return self.findings[0]

    def classes(self, *moment: str) -> dict[str, int]:
        """The bytes of each class at a moment."""
        [rank] = self.memctl.answer("ledger", "--job", self.job, *moment)["ranks"]
        return {row["class"]: row["live_bytes"] for row in rank["classes"]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """Every program's job; each has its own store."""
    started: dict[str, tuple[Memctl, Going]] = {}
    for name, source in PROGRAMS.items():
        if name == "lightning" and importlib.util.find_spec("lightning") is None:
            continue
        memctl = Memctl(tmp_path_factory.mktemp(name))
        script = memctl.folder / "train.py"
        script.write_text(source)
        conf = "backend:cudaMallocAsync" if name == "counted" else ""
        settings = {"PYTORCH_CUDA_ALLOC_CONF": conf, "OMP_NUM_THREADS": "1"}
        started[name] = (memctl, memctl.start_recorded(name, sys.executable, str(script), settings=settings))
    runs = {name: going.wait() for name, (_, going) in started.items()}
    failed = {name: run for name, run in runs.items() if run.code != 0}
    assert not failed, failed
    return {name: Recorded(memctl, name) for name, (memctl, _) in started.items()}


def line_of(name: str, mark: str) -> int:
    return next(number for number, line in enumerate(PROGRAMS[name].splitlines(), 1) if mark in line)


def test_a_hook_that_is_registered_every_epoch(recorded: dict[str, Recorded]) -> None:
    leak = recorded["hooks"].leak()
    assert leak["pattern"] == "hooks_pile_up", leak
    assert "a hook is registered repeatedly" in leak["title"], leak
    assert "Register the hook" in leak["advice"], leak
    # The hook's line, not the line that calls the model.
    assert (leak["site"]["function"], leak["site"]["line"]) == ("remember", line_of("hooks", "kept.append")), leak


def test_an_optimizer_that_is_recreated_every_epoch(recorded: dict[str, Recorded]) -> None:
    job = recorded["optimizers"]
    leak = job.leak()
    # The run is too short for an answer about holders, which alone shows that there are several optimizers.
    assert leak["pattern"] == "optimizer_state" and "optimizer state" in leak["title"], leak
    assert "add_param_group" in leak["explanation"] + leak["advice"], leak
    assert "one optimizer" in leak["advice"] and "deque" not in leak["advice"], leak
    assert ".cpu()" not in leak["advice"], leak
    # The steps of every optimizer count.
    assert (job.rank["epochs"], job.rank["steps"]) == (8, 80), job.rank


def test_an_allocator_without_events_is_judged_by_its_counters(recorded: dict[str, Recorded]) -> None:
    job = recorded["counted"]
    leak = job.leak()
    assert leak["site"] is None and "only counters were recorded, so no line can be named" in leak["title"], leak
    assert abs(leak["bytes_per_step"] - (1 << 20)) < 1 << 16, leak
    ends = [end["allocated_bytes"] for end in job.rank["epoch_ends"]]
    assert len(ends) == 8 and all(after > before for before, after in zip(ends, ends[1:])), ends
    missing = {gap["kind"]: gap["reason"] for gap in job.not_judged}
    assert "only the allocator's counters were recorded" in missing["leak"], missing
    assert "only counters" in missing["oom"] and "only counters" in missing["fragmentation"], missing
    page = job.memctl("leaks", "--job", job.job).out
    assert "only the allocator's counters were recorded" in " ".join(page.split()), page


def test_a_loss_kept_a_step_in_lightning_as_in_a_plain_loop(recorded: dict[str, Recorded]) -> None:
    if "lightning" not in recorded:
        pytest.skip("lightning is not installed")
    for name in ("lightning", "plain"):
        leak = recorded[name].leak()
        wanted = line_of(name, "loss = nn.functional.cross_entropy(")
        assert (leak["site"]["function"].split(".")[-1], leak["site"]["line"]) == ("training_step", wanted), leak
        # Lightning calls forward and backward from within the optimizer's step.
        assert leak["evidence"]["born_in"] == "forward" and leak["evidence"]["rises"] >= 90, leak
        assert (recorded[name].rank["epochs"], recorded[name].rank["steps"]) == (8, 96)
    ours, theirs = (recorded[name].classes("--peak") for name in ("plain", "lightning"))
    assert {"parameters", "gradients", "optimizer_state", "activations"} <= ours.keys() & theirs.keys(), (ours, theirs)
    for name, size in ours.items():
        assert abs(theirs.get(name, 0) - size) <= size / 10, (name, ours, theirs)
