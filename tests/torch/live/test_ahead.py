"""The out-of-memory forecast: in a leaking training, the request that will fail is named while the training still runs.

Genuine torch on a fake device of 2 GiB, run until it is out of memory. The test queries the daemon repeatedly
meanwhile, and compares its responses with what then happened.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from test_leak_to_the_end import plain_daemon, seconds  # noqa: F401

from conftest import Memctl

# (The fixtures above are used by their names.)
MIB = 1 << 20
KEPT = 24 * MIB
TRAINING = f"""
import time
import torch
from torch.utils.data import DataLoader
import small

training = small.Training()
kept = []

def keep(size):
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

for epoch in range(10_000):
    for batch in DataLoader(torch.randn(8 * 10, 32), batch_size=8):
        training.step(batch)
        keep({KEPT})
        time.sleep(0.25)
"""


def test_the_request_that_will_fail_is_named_while_the_training_runs(
    memctl: Memctl,
    script: Any,
    plain_daemon: Any,  # noqa: F811
) -> None:
    url = plain_daemon.url
    settings = {"MEMCTL_DAEMON": url, "FAKE_GPU_MIB": "2048", "OMP_NUM_THREADS": "1"}
    going = memctl.start_recorded("fills", sys.executable, str(script(TRAINING)), settings=settings, patience="60s")
    forecasts: list[tuple[float, Any]] = []
    alerted: list[Any] = []
    asked = 0
    while going.process.poll() is None:
        answer = memctl("query", "--job", "fills", "--daemon", url, "-o", "json")
        asked += 1
        if answer.code in (0, 1) and answer.out.startswith("{"):
            findings = json.loads(answer.out)["findings"]
            ahead = [finding for finding in findings if "steps_ahead" in finding["evidence"]]
            forecasts += [(time.time(), finding) for finding in ahead]
        firing = json.loads(memctl("alerts", "--firing", "--daemon", url, "-o", "json").out)["alerts"]
        alerted += [alert for alert in firing if alert["kind"] == "near_oom"]
        time.sleep(0.2)
    run = going.wait()
    assert run.code == 1 and "OutOfMemoryError" in run.err, run
    [failure] = memctl.answer("oom", "--job", "fills", "--daemon", url)["failures"]
    ended = seconds(failure["at"])
    in_time = [(ended - when, finding) for when, finding in forecasts if when < ended]
    assert in_time, (asked, forecasts, run)
    left, last = in_time[-1]
    # Early enough to act on: with short steps, the forecast reaches beyond the next step.
    ahead = [finding["evidence"]["steps_ahead"] for _, finding in in_time]
    assert max(ahead) > 1, ahead
    assert last["kind"] == "near_oom" and last["severity"] == "warning", last
    assert last["evidence"]["requested_bytes"] == KEPT and last["evidence"]["reason"] == "capacity", last
    assert "24.0 MiB in keep (train.py:11) will fail" in last["title"], (left, last)
    # The alert needs no configuration: the built-in rule fires.
    assert alerted and alerted[-1]["rule"] == "OutOfMemoryAhead", alerted
    # An ended training has no forecast.
    after = memctl.answer("query", "--job", "fills", "--daemon", url)
    assert not [finding for finding in after["findings"] if "steps_ahead" in finding["evidence"]], after["findings"]
