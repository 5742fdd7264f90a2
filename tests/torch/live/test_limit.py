"""A program that limits its own allocator: room is room below its limit, and not below the device's size."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from conftest import Memctl

# Of 2,048 MiB, 128 MiB are allowed. The full buffer has 150 MiB.
SCRIPT = """
import collections, sys, time
import torch
torch.cuda.set_per_process_memory_fraction(1 / 16)
net = torch.nn.Linear(256, 16).cuda()
optimizer = torch.optim.SGD(net.parameters(), 1e-4)
recent = collections.deque(maxlen=600)

def remember():
    recent.append(torch.zeros(65536, device="cuda"))

for step in range(int(sys.argv[1])):
    remember()
    net(torch.ones(4, 256, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""
LIMIT = 128 << 20


def test_room_is_room_below_the_programs_own_limit(memctl: Memctl, script: Any) -> None:
    run = memctl.record("filling", sys.executable, str(script(SCRIPT)), "300", FAKE_GPU_MIB="2048")
    assert run.code == 0, run
    verdict = memctl.answer("query", "--job", "filling")["verdict"]
    assert (verdict["kind"], verdict["fits"]) == ("filling", False), verdict
    assert "The process's own limit of 128 MiB has no room for it." in verdict["sentence"], verdict
    assert memctl("assert", "filling", "no-leak").code == 1


def test_memory_that_ran_out_before_a_container_was_full(memctl: Memctl, script: Any) -> None:
    run = memctl.record("full", sys.executable, str(script(SCRIPT)), "600", FAKE_GPU_MIB="2048")
    assert run.code == 1 and "OutOfMemoryError" in run.err, run
    report = memctl.answer("query", "--job", "full")
    assert report["verdict"]["kind"] == "out_of_memory", report["verdict"]
    assert report["findings"][0]["severity"] == "critical", report["findings"]
    (failure,) = memctl.answer("oom", "--job", "full")["failures"]
    assert failure["limit_at_least_bytes"] == LIMIT, failure
    assert memctl("query", "--job", "full", "--fail-on", "warning").code == 1


# Two devices, and a limit on the one that is not the current one.
DEVICES = """
import torch
torch.cuda.set_device(0)
if {set_on_other}:
    torch.cuda.set_per_process_memory_fraction(1 / 16, 1)
    torch.cuda.set_device(0)
net = torch.nn.Linear(256, 16).cuda()
optimizer = torch.optim.SGD(net.parameters(), 1e-4)
for step in range(20):
    net(torch.ones(4, 256, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert torch.cuda.current_device() == 0, step
    assert torch.ones(1, device="cuda").device.index == 0, step
"""


@pytest.mark.parametrize("set_on_other", [False, True])
def test_a_look_at_the_limit_leaves_the_current_device(memctl: Memctl, script: Any, set_on_other: bool) -> None:
    text = DEVICES.format(set_on_other=set_on_other)
    run = memctl.record("devices", sys.executable, str(script(text)), FAKE_GPU_MIB="2048", FAKE_GPU_COUNT="2")
    assert run.code == 0, run
    assert all(rank["device"] == 0 for rank in memctl.answer("query", "--job", "devices")["ranks"])
