"""Bounds: memory of the trainer, and a ring that is too small.

Guarantees checked: a burst is kept while the ring is not read; a recorded training needs at most 64 MB more than a
plain one, even without a daemon; dropped events are counted, responses say that they are not exact until the next
snapshot of the blocks, and are exact after it.
"""

from __future__ import annotations

import sys
from typing import Any

from conftest import Memctl, Plain, both, same
from peers import Absent

MANY = """
import resource
import torch
import small
small.attach_if_wanted()
training = small.Training()
training.steps(5)
small.tell("before", small.status().get("produced"))
for number in range(150_000):
    torch.empty(512 + number % 64 * 512, dtype=torch.uint8, device="cuda")
training.steps(5)
status = small.status()
small.tell("status", status)
training.report()
small.tell("resident", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
MOST_BYTES = 64_000_000


def test_memory_of_the_trainer(memctl: Memctl, script: Any, plain: Plain) -> None:
    """300,000 events that no daemon accepts, with and without the launcher."""
    path, absent = script(MANY), Absent()
    at = {"MEMCTL_DAEMON": absent.url}
    by_launcher, by_hand = both(
        lambda: memctl.start_recorded("many", sys.executable, str(path), settings=at).wait(),
        lambda: memctl.start([sys.executable, str(path)], {"ATTACH": "many", **at}).wait(),
    )
    assert absent.happened()
    absent.stop()
    expected = plain(memctl, path)
    for run in (by_launcher, by_hand):
        same(expected, run)
        assert run.reported("status")["produced"] > 300_000, run
        more = run.reported("resident") - expected.reported("resident")
        assert more <= MOST_BYTES, (more, run)


BURST = """
import os
import signal
import torch
import small
training = small.Training()
training.steps(5)
# The launcher is stopped, so it reads nothing from the ring until SIGCONT, on fast and on slow machines.
os.kill(os.getppid(), signal.SIGSTOP)
before = small.status().get("produced")
keep = [torch.empty(512, dtype=torch.uint8, device="cuda") for _ in range(100_000)]
del keep
small.tell("burst", (small.status().get("produced") or 0) - (before or 0))
os.kill(os.getppid(), signal.SIGCONT)
training.steps(5)
small.tell("status", small.status())
training.report()
"""


def test_a_burst_is_kept(memctl: Memctl, script: Any) -> None:
    """Three events for each of 100,000 blocks, with a ring of the default size."""
    run = memctl.record("burst", sys.executable, str(script(BURST)))
    status = run.reported("status")
    assert run.reported("burst") > 250_000 and status["dropped"] == 0, run
    completeness = memctl.answer("query", "--job", "burst")["completeness"]
    assert completeness["exact"] is True and completeness["events_dropped"] == 0, completeness
    assert completeness["events_stored"] >= status["produced"], (completeness, status)


DROPS = """
import datetime
import torch
from torch.utils.data import DataLoader, TensorDataset
import small
training = small.Training()
data = DataLoader(TensorDataset(torch.randn(40, 32)), batch_size=8)
for epoch in range(4):
    for number, (batch,) in enumerate(data):
        training.step(batch)
        if epoch == 1 and number == 2:
            # More events than the ring holds, faster than the ring is emptied. Half of the blocks stay.
            keep = [torch.empty(1 << 12, dtype=torch.uint8, device="cuda") for _ in range(20_000)]
            del keep[::2]
            small.tell("dropped", small.status().get("dropped"))
            small.tell("moment", datetime.datetime.now(datetime.timezone.utc).isoformat())
    stats = torch.cuda.memory_stats()
    small.tell(f"epoch-{epoch}", [stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]])
small.tell("status", small.status())
training.report()
"""


def test_a_ring_that_overflows(memctl: Memctl, script: Any, plain: Plain) -> None:
    path = script(DROPS)
    recorded, expected = both(
        lambda: memctl.record("drops", sys.executable, str(path), MEMCTL_RING_EVENTS="1024"),
        lambda: plain(memctl, path),
    )
    same(expected, recorded)
    dropped = recorded.reported("dropped")
    assert dropped > 0, recorded
    status = recorded.reported("status")
    answer = memctl.answer("query", "--job", "drops")
    completeness = answer["completeness"]
    assert completeness["exact"] is False and completeness["events_dropped"] >= status["dropped"] >= dropped
    # Every event is either stored or counted as dropped.
    [rank] = answer["ranks"]
    assert rank["events"] + completeness["events_dropped"] >= status["produced"], (answer, status)
    ends = {end["epoch"]: end for end in rank["epoch_ends"]}
    for epoch in (0, 2, 3):
        allocated, reserved = recorded.reported(f"epoch-{epoch}")
        assert ends[epoch]["exact"] and ends[epoch]["reserved_bytes"] == reserved, (epoch, ends[epoch])
        # The last epoch ends with the program, in the state after its last step: the loss was still alive.
        assert 0 <= ends[epoch]["allocated_bytes"] - allocated <= (4096 if epoch == 3 else 0), (epoch, ends)
    # Between the dropped events and the next snapshot, no response claims to be exact.
    moment = recorded.reported("moment").replace("+00:00", "Z")
    [then] = memctl.answer("sites", "--job", "drops", "--at", moment)["ranks"]
    assert then["exact"] is False, then
    [after] = memctl.answer("sites", "--job", "drops", "--epoch-end", "2")["ranks"]
    assert after["exact"] is True and after["allocated_bytes"] == recorded.reported("epoch-2")[0], after
