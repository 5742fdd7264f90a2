"""Marks end to end: epochs, steps and phases of a script without names, and of one with its own names; and sites.

What `memctl query`, `sites` and `export` say is compared with what the script counted itself.
"""

from __future__ import annotations

import pathlib
import pickle
import sys
from typing import Any

import pytest

from conftest import Memctl, Plain, Run, both, same

EPOCHS, STEPS = 3, 5
UNMODIFIED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import small

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 512)
        self.second = torch.nn.Linear(512, 8)
    def forward(self, batch):
        hidden = self.first(batch)
        hidden = hidden.relu()
        return self.second(hidden)

torch.manual_seed(0)
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
train = DataLoader(TensorDataset(torch.randn(40, 256)), batch_size=8, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(24, 256)), batch_size=8)
for epoch in range(3):
    model.train()
    for (batch,) in train:
        optimizer.zero_grad()
        loss = model(batch.cuda()).square().mean()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for (batch,) in valid:
            kept = model(batch.cuda())
    print(epoch, loss.item(), flush=True)
    small.tell(f"allocated-{epoch}", torch.cuda.memory_allocated())
"""
BY_HAND = """
import memctl_agent, torch
import small
training = small.Training()
number = 100
for epoch in (7, 8):
    with memctl_agent.epoch(epoch):
        for _ in range(4):
            with memctl_agent.step(number):
                with memctl_agent.phase("train"), memctl_agent.region("everything"):
                    training.step()
            number += 1
        with memctl_agent.phase("eval"), torch.no_grad():
            training.model(torch.randn(8, 32).cuda())
        training.leak(1 << 20)
        small.tell(f"allocated-{epoch}", torch.cuda.memory_allocated())
memctl_agent.note("done")
training.report()
"""


def record(memctl: Memctl, plain: Plain, path: pathlib.Path, job: str) -> Run:
    recorded, expected = both(lambda: memctl.record(job, sys.executable, str(path)), lambda: plain(memctl, path))
    same(expected, recorded)
    assert recorded.code == 0, recorded
    return recorded


def ranges(memctl: Memctl, job: str, folder: pathlib.Path) -> list[tuple[str, str]]:
    """Stage (START, END) and name of every range, in order, as PyTorch's viewer gets them."""
    path = folder / "marks.pickle"
    run = memctl("export", "--job", job, "--rank", "0", "--format", "memory-viz", "-f", str(path))
    assert run.code == 0, run
    with path.open("rb") as file:
        found = pickle.load(file)["external_annotations"]
    return [(entry["stage"], entry["name"]) for entry in found]


def test_a_script_without_a_line_for_us(memctl: Memctl, script: Any, plain: Plain, tmp_path: pathlib.Path) -> None:
    path = script(UNMODIFIED)
    run = record(memctl, plain, path, "unmodified")
    [rank] = memctl.answer("query", "--job", "unmodified")["ranks"]
    assert rank["epochs"] == EPOCHS and rank["steps"] == EPOCHS * STEPS, rank
    ends = {end["epoch"]: end for end in rank["epoch_ends"]}
    assert [ends[epoch]["step"] for epoch in range(EPOCHS)] == [STEPS * (epoch + 1) - 1 for epoch in range(EPOCHS)]
    for epoch in range(EPOCHS):
        assert ends[epoch]["allocated_bytes"] == run.reported(f"allocated-{epoch}") and ends[epoch]["exact"]
    marks = ranges(memctl, "unmodified", tmp_path)
    begun = [name for stage, name in marks if stage == "START"]
    for phase, count in (("forward", 15), ("backward", 15), ("optimizer", 15), ("train", EPOCHS), ("eval", EPOCHS)):
        assert sum(phase in name for name in begun) == count, (phase, count, begun)
    # Within a step the phases come in their order.
    first = [name for name in begun if any(phase in name for phase in ("forward", "backward", "optimizer"))][:6]
    assert [name.split()[-1] for name in first] == ["forward", "backward", "optimizer"] * 2, first


def test_sites_name_the_users_lines(memctl: Memctl, script: Any, plain: Plain) -> None:
    path = script(UNMODIFIED)
    record(memctl, plain, path, "sites")
    lines = UNMODIFIED.splitlines()
    answer = memctl.answer("sites", "--job", "sites", "--end")
    sites = answer["ranks"][0]["sites"]
    named = {line_of(site, path): site for site in sites if line_of(site, path)}
    texts = {lines[number - 1].strip() for number in named if number}
    # Parameters, optimizer state, and the last output.
    assert "model = Net().cuda()" in texts and "optimizer.step()" in texts, texts
    assert any("self.second(hidden)" in text or "kept = model" in text for text in texts), texts
    # Gradients are made by threads without Python: they are named by the forward line and the node.
    nodes = [site for site in sites if any("Backward" in frame["function"] for frame in site["stack"])]
    assert nodes, sites
    forward = {lines[number - 1].strip() for number in (line_of(site, path) for site in nodes) if number}
    assert any("self.first(batch)" in text or "self.second(hidden)" in text for text in forward), (forward, nodes)
    assert sum(site["live_bytes"] for site in sites) == answer["ranks"][0]["allocated_bytes"]


def line_of(site: dict[str, Any], path: pathlib.Path) -> int:
    """The line of a site's innermost frame in the user's script."""
    return next((frame["line"] for frame in site["stack"] if frame["file"] == str(path)), 0)


def test_ranges_by_hand(memctl: Memctl, script: Any, plain: Plain, tmp_path: pathlib.Path) -> None:
    run = record(memctl, plain, script(BY_HAND), "hand")
    [rank] = memctl.answer("query", "--job", "hand")["ranks"]
    ends = {end["epoch"]: end for end in rank["epoch_ends"]}
    assert {7, 8} <= ends.keys() and ends[7]["step"] == 103 and ends[8]["step"] == 107, ends
    for epoch in (7, 8):
        assert ends[epoch]["allocated_bytes"] == run.reported(f"allocated-{epoch}") and ends[epoch]["exact"]
    assert rank["steps"] == 8, rank
    begun = [name for stage, name in ranges(memctl, "hand", tmp_path) if stage == "START"]
    assert sum("everything" in name for name in begun) == 8, begun
    assert sum("eval" in name for name in begun) == 2, begun


@pytest.mark.parametrize("auto", [True, False])
def test_automatic_marks_can_be_left_out(memctl: Memctl, script: Any, plain: Plain, auto: bool) -> None:
    head = f"import memctl_agent\nmemctl_agent.attach(auto={auto})\n"
    recorded = record(memctl, plain, script(head + UNMODIFIED), "auto")
    assert recorded.code == 0
    [rank] = memctl.answer("query", "--job", "auto")["ranks"]
    assert rank["steps"] == (EPOCHS * STEPS if auto else 0), rank
