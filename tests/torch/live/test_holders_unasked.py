"""Automatic holder searches: a training that leaks under `memctl run` ends with the holder chain in its finding and
computes the same result as without memctl. With `--no-holders` it is not searched. A server without steps is searched
as well."""

from __future__ import annotations

import json
import sys
from typing import Any

from conftest import Daemon, Memctl, Run

# Trains for the given number of epochs; with 0, until 10 s after a search began: a search runs in slices, and on a busy
# machine it may be repeated.
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

wanted, epochs, searched = int(sys.argv[1]), 0, None
until = time.monotonic() + 120
while epochs < wanted or (wanted == 0 and time.monotonic() < min(until, (searched or until) + 10)):
    with memctl_agent.epoch(epochs):
        for _ in range(8):
            training.step()
            remember()
    if searched is None and "memctl_agent._holders._search" in sys.modules:
        searched = time.monotonic()
    epochs += 1
small.tell("epochs", epochs)
small.tell("searched", searched is not None)
training.report()
"""


def recorded(memctl: Memctl, job: str, train: Any, epochs: int, *flags: str) -> Run:
    run = memctl("run", *flags, "--job", job, "--", sys.executable, str(train), str(epochs))
    assert run.code == 0, run
    return run


def test_a_leak_ends_with_its_chain_and_nothing_else_changes(memctl: Memctl, script: Any) -> None:
    train = script(LEAK)
    asked = recorded(memctl, "asked", train, 0)
    assert asked.reported("searched") is True, asked
    epochs = asked.reported("epochs")
    [finding] = [one for one in memctl.answer("diagnose", "--job", "asked")["findings"] if one["kind"] == "leak"]
    holders = finding["holders"]
    assert holders["unasked"] is True and holders["failure"] is None, finding
    [holder] = holders["holders"]
    assert holder["kind"] == "list" and "list `KEPT` of module `__main__`" in holder["sentence"], holders
    assert holder["blocks"] == holders["asked_blocks"] == holders["found_blocks"] > 0, holders
    assert 0 <= holders["epoch"] < epochs and holders["took_seconds"] < 2, holders
    page = " ".join(memctl("diagnose", "--job", "asked").out.split())
    assert " by list `KEPT` of module `__main__`" in page and "→ global `KEPT` →" in page, page

    # As many epochs, with `--no-holders`: no search, and the same result.
    plain = recorded(memctl, "plain", train, epochs, "--no-holders")
    assert plain.reported("searched") is False, plain
    [finding] = [one for one in memctl.answer("diagnose", "--job", "plain")["findings"] if one["kind"] == "leak"]
    assert finding["holders"] is None, finding
    alone = memctl.start([sys.executable, str(train), str(epochs)], {}).wait()
    assert alone.code == 0, alone
    assert result(asked) == result(plain) == result(alone), (asked, plain, alone)


def result(run: Run) -> list[str]:
    """The training's own result lines, without memctl's page."""
    return [line for line in run.out.splitlines() if line.startswith("result ")]


SERVER = """
import pathlib
import sys
import threading
import time
import torch

class Server:
    def __init__(self):
        self.seen = {}

    def answer(self, number):
        self.seen[number] = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")

server = Server()
end = pathlib.Path(sys.argv[1])
number = 0
while not end.exists():
    if number < 40:
        server.answer(number)
        number += 1
    # Without the interpreter's lock, as a server that waits.
    time.sleep(0.05)
print("ended")
"""


def test_a_server_that_waits_is_asked_and_answers(memctl: Memctl, script: Any) -> None:
    daemon = Daemon(memctl)
    try:
        end = str(memctl.folder / "server.end")
        settings = {"MEMCTL_DAEMON": daemon.url}
        going = memctl.start_recorded("server", sys.executable, str(script(SERVER)), end, settings=settings)

        def answer() -> Run:
            return memctl(
                "holders", "--job", "server", "--site", "answer", "--budget", "5s", "--daemon", daemon.url, "-o", "json"
            )

        runs: list[Run] = []
        going.until(lambda: bool(runs.append(answer())) or runs[-1].code == 0, "it answers")
        found = json.loads(runs[-1].out)
        [holder] = found["holders"]
        assert "dict `seen` of `Server`" in holder["sentence"], found
        assert (holder["holder"], holder["bound"]) == ("container", "unbounded"), found
        assert found["slices"] >= 1 and 0 < found["longest_seconds"] <= found["took_seconds"], found
        (memctl.folder / "server.end").touch()
        run = going.wait()
        assert run.code == 0 and run.out == "ended\n", run
    finally:
        daemon.stop()


# A bounded deque fills, so the process is searched; the steps are slow until it is. The collector is off: what the
# search kept would stay.
PEAK = """
import collections
import gc
import sys
import time
import torch
import small

gc.disable()
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
recent = collections.deque(maxlen=300)
slow = sys.argv[1] == "slow"

def train_step(batch):
    out = model(batch)
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return out.detach()

for step in range(400):
    recent.append(train_step(torch.ones(4096, 64, device="cuda"))[:64].clone())
    if slow and "memctl_agent._holders._search" not in sys.modules:
        time.sleep(0.05 if step < 250 else 1)
        slow = step < 290
small.tell("searched", "memctl_agent._holders._search" in sys.modules)
small.tell("peak", torch.cuda.max_memory_allocated())
"""


def test_a_search_keeps_no_tensor_alive(memctl: Memctl, script: Any) -> None:
    train = script(PEAK)
    searched = memctl("run", "--job", "searched", "--", sys.executable, str(train), "slow")
    alone = memctl("run", "--no-holders", "--job", "alone", "--", sys.executable, str(train), "fast")
    assert searched.reported("searched") is True and alone.reported("searched") is False, searched
    assert searched.reported("peak") == alone.reported("peak")
