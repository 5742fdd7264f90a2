"""`torch.cuda.empty_cache()` in every step is reported at its line, with its cost; every 80 steps it is not."""

from __future__ import annotations

import sys
from typing import Any

from conftest import Memctl

SCRIPT = """
import os
import torch
import small

training = small.Training()
often = "OFTEN" in os.environ

def tidy():
    torch.cuda.empty_cache()

for number in range(240):
    big = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    training.step()
    del big
    if often or number % 80 == 79:
        tidy()
"""


def churn(memctl: Memctl, job: str) -> list[dict[str, Any]]:
    return [finding for finding in memctl.answer("query", "--job", job)["findings"] if finding["kind"] == "churn"]


def test_a_cache_that_is_emptied_in_every_step(memctl: Memctl, script: Any) -> None:
    train = str(script(SCRIPT))
    run = memctl.record("often", sys.executable, train, OFTEN="1")
    assert run.code == 0, run
    [found] = churn(memctl, "often")
    assert (found["pattern"], found["severity"]) == ("cache_emptied", "warning"), found
    assert "calls empty_cache() in" in found["title"] and "in tidy (train.py:" in found["title"], found
    assert found["site"]["function"] == "tidy", found
    assert found["evidence"]["driver_calls_per_step"] >= 2, found

    assert memctl.record("seldom", sys.executable, train).code == 0
    assert churn(memctl, "seldom") == []
