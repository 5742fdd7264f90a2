"""CuPy and JAX under the real `memctl run`: the stored events are those that their allocators reported.

CuPy's hook class and registry are genuine; the pool that drives them is a stand-in, because CuPy needs a real driver.
JAX itself is genuine; its devices are stand-ins, because without a GPU it has none that reports memory.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest

from conftest import TESTS, Memctl

UNIT = TESTS / "torch" / "unit"

CUPY = """
import json, sys
sys.path.insert(0, sys.argv[1])
import cupy
from cupy.cuda import memory_hook
import memctl_agent, memctl_agent.cupy as memctl_cupy
from others import Pool

pool = Pool(memory_hook.get_memory_hooks)
memctl_cupy._pool = lambda: pool
memctl_cupy._devices = lambda native: [(0, None, "a GPU", 80 << 30)]
memctl_cupy.BOUNDARY_S_MIN = 0.0
cupy.cuda.get_current_stream = lambda: type("Stream", (), {"ptr": 11})
cupy.cuda.runtime.memGetInfo = lambda: (1000, 80 << 30)
class Device:
    def __init__(self, ordinal): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
cupy.cuda.Device = Device

def keep(kept):
    kept.append(pool.malloc(1 << 20))  # the leak

def forward():
    blocks = [pool.malloc(size) for size in (70_000, 300, 5 << 20, 1_500_000)]
    for block in blocks:
        pool.free(block)

assert memctl_cupy.install()
kept, ends, step = [], [], 0
for epoch in range(3):
    with memctl_agent.epoch(epoch):
        for _ in range(20):
            with memctl_agent.step(step):
                forward()
            step += 1
        keep(kept)
        # Unseen: the addresses come again.
        pool.free_all_blocks()
        ends.append((pool.used_bytes(), pool.total_bytes()))
pool.malloc(1 << 40, fails=True)
status = memctl_agent.status()
assert status["level"] == "full" and status["dropped"] == 0 and not status["trouble"], status
memctl_agent.detach()
json.dump({"ledger": pool.ledger, "ends": ends}, open(sys.argv[2], "w"))
"""

JAX = """
import sys
import jax
import memctl_agent, memctl_agent.jax as memctl_jax

class Device:
    platform, device_kind, local_hardware_id, used = "gpu", "a GPU", 0, 0
    def memory_stats(self):
        return {"bytes_in_use": self.used, "peak_bytes_in_use": 9 << 20, "pool_bytes": 64 << 20, "bytes_limit": 1 << 30}

device = Device()
jax.local_devices = lambda: [device, *jax.devices("cpu")]
memctl_jax.BOUNDARY_S_MIN = 0.0
assert memctl_jax.watch(every_s=3600)
for epoch in range(2):
    with memctl_agent.epoch(epoch):
        for step in range(3):
            with memctl_agent.step(epoch * 3 + step):
                device.used += 1 << 20
assert memctl_agent.status()["level"] == "counters", memctl_agent.status()
assert "torch" not in sys.modules
"""


def test_what_cupys_pool_tells_is_stored_with_lines(memctl: Memctl, script: Any, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed in this environment: pip install cupy-cuda13x")
    path, said = script(CUPY, "arrays.py"), tmp_path / "said.json"
    run = memctl.record("arrays", sys.executable, str(path), str(UNIT), str(said))
    assert run.code == 0, run
    truth = json.loads(said.read_text())
    stored = memctl.events("arrays")
    # `segment_free` is inferred: the pool does not report it.
    events = [event for event in stored if event[0] != "segment_free"]
    assert events[:-1] == [tuple(event) for event in truth["ledger"]]
    assert events[-1][:3] == ("oom", 1 << 40, 1000)
    assert any(event[0] == "segment_free" for event in stored)
    answer = memctl.answer("query", "--job", "arrays")
    ends = answer["ranks"][0]["epoch_ends"]
    assert [(end["allocated_bytes"], end["reserved_bytes"]) for end in ends] == [tuple(end) for end in truth["ends"]]
    assert all(end["exact"] for end in ends) and answer["completeness"]["events_dropped"] == 0
    (growth,) = answer["growth"]
    line = 1 + next(number for number, text in enumerate(CUPY.splitlines()) if "# the leak" in text)
    frames = [(frame["function"], frame["line"]) for frame in growth["stack"] if frame["file"] == str(path)]
    assert frames[0] == ("keep", line) and frames[-1][0] == "<module>"
    assert growth["ranks"][0]["bytes_per_epoch"] == 1 << 20


BOTH = """
import torch
import memctl_agent
from memctl_agent import _native

torch.zeros(1000, device="cuda")
before = memctl_agent.status()
assert before["attached"] and before["produced"] > 0, before
try:
    _native.attach_foreign()
except _native.NativeError as error:
    assert "PyTorch's allocator is recorded here" in str(error), error
else:
    raise AssertionError("two sources of events")
assert not _native.record(0, 1, 1 << 30, 512)
assert memctl_agent.status()["produced"] == before["produced"]
memctl_agent.detach()

# The other way round: a session whose events are reported takes no hook.
_native.start(framework="told", conf="", devices=[(0, None, None, None)])
_native.attach_foreign()
_native.attach_foreign()
assert _native.record(0, 1, 1 << 30, 512) and not _native.record(7, 1, 1 << 30, 512)
try:
    _native.attach_hook("/nowhere", None, "")
except _native.NativeError as error:
    assert "another allocator" in str(error), error
else:
    raise AssertionError("two sources of events")
# PyTorch's tracker is still attached; its events do not reach this session.
torch.zeros(1000, device="cuda")
assert _native.status()["produced"] == 1, _native.status()
_native.stop(None, 0.0)
"""


def test_pytorch_and_another_source_exclude_each_other(memctl: Memctl, script: Any) -> None:
    pytest.importorskip("torch", reason="torch is not installed in this environment")
    run = memctl.record("both", sys.executable, str(script(BOTH)))
    assert run.code == 0, run


def test_jaxs_counters_are_stored(memctl: Memctl, script: Any) -> None:
    pytest.importorskip("jax", reason="jax is not installed in this environment: pip install jax")
    run = memctl.record("counted", sys.executable, str(script(JAX)), JAX_PLATFORMS="cpu")
    assert run.code == 0, run
    rank = memctl.answer("query", "--job", "counted")["ranks"][0]
    assert (rank["epochs"], rank["steps"], rank["events"]) == (2, 6, 0)
    assert rank["framework"].startswith("jax ") and rank["gpu_name"] == "a GPU"
    # The last sample at the end of a step or an epoch.
    sample = rank["sample"]
    assert (sample["allocated_bytes"], sample["reserved_bytes"]) == (6 << 20, 64 << 20)
