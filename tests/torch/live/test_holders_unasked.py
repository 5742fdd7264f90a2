"""Who holds it, without anybody asking: a training that leaks under `memctl run --holders` ends with the chain in its
finding, computes what it computes without, and is left alone where nobody allowed it."""

from __future__ import annotations

import sys
from typing import Any

from conftest import Memctl, Run

# Trains so many epochs; of 0, until it was searched and eight more have passed: a machine that is busy with something
# else leaves little of a search's time, and then it is searched once more.
LEAK = """
import sys
import time
import torch
import memctl_agent
import small

training = small.Training()
KEPT = []

def remember():
    KEPT.append(torch.empty(1 << 14, dtype=torch.uint8, device="cuda"))

wanted, epochs, behind = int(sys.argv[1]), 0, 0
until = time.monotonic() + 120
while epochs < wanted or (wanted == 0 and behind < 8 and time.monotonic() < until):
    with memctl_agent.epoch(epochs):
        for _ in range(8):
            training.step()
            remember()
    behind += "memctl_agent._holders" in sys.modules
    epochs += 1
small.tell("epochs", epochs)
small.tell("searched", behind > 0)
training.report()
"""


def recorded(memctl: Memctl, job: str, train: Any, epochs: int, *flags: str) -> Run:
    run = memctl("run", *flags, "--job", job, "--", sys.executable, str(train), str(epochs))
    assert run.code == 0, run
    return run


def test_a_leak_ends_with_its_chain_and_nothing_else_changes(memctl: Memctl, script: Any) -> None:
    train = script(LEAK)
    asked = recorded(memctl, "asked", train, 0, "--holders")
    assert asked.told("searched") is True, asked
    epochs = asked.told("epochs")
    [finding] = [one for one in memctl.answer("diagnose", "--job", "asked")["findings"] if one["kind"] == "leak"]
    holders = finding["holders"]
    assert holders["unasked"] is True and holders["failure"] is None, finding
    [holder] = holders["holders"]
    assert holder["kind"] == "list" and "list `KEPT` of module `__main__`" in holder["sentence"], holders
    assert holder["blocks"] == holders["asked_blocks"] == holders["found_blocks"] > 0, holders
    assert 0 <= holders["epoch"] < epochs and holders["took_seconds"] < 2, holders
    page = " ".join(memctl("diagnose", "--job", "asked").out.split())
    assert "Held by list `KEPT` of module `__main__`" in page and "→ global `KEPT` →" in page, page

    # As long, without the flag: nobody asks, and what is computed is the same.
    plain = recorded(memctl, "plain", train, epochs)
    assert plain.told("searched") is False, plain
    [finding] = [one for one in memctl.answer("diagnose", "--job", "plain")["findings"] if one["kind"] == "leak"]
    assert finding["holders"] is None, finding
    alone = memctl.start([sys.executable, str(train), str(epochs)], {}).wait()
    assert alone.code == 0, alone
    assert result(asked) == result(plain) == result(alone), (asked, plain, alone)


def result(run: Run) -> list[str]:
    """What the training printed, without the page behind it."""
    return [line for line in run.out.splitlines() if line.startswith("result ")]
