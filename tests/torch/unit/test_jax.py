"""`memctl_agent.jax` with genuine JAX on the CPU, which has no counters, and with devices that have some.

The devices are stand-ins with a GPU's `memory_stats()`, as XLA fills it in: no JAX for GPUs runs without one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memctl_agent
from memctl_agent import _session
from memctl_agent import jax as memctl_jax

from others import Native

jax = pytest.importorskip("jax", reason="jax is not installed in this environment: pip install jax")

PACKAGE = Path(__file__).resolve().parents[3] / "agent" / "python"


class Device:
    """The part of a GPU device that is used."""

    platform, device_kind = "gpu", "NVIDIA H200"

    def __init__(self, ordinal: int, stats: dict[str, int]) -> None:
        self.local_hardware_id, self.stats, self.asked = ordinal, stats, 0

    def memory_stats(self) -> dict[str, int]:
        """XLA's counters."""
        self.asked += 1
        return dict(self.stats)


STATS = {
    "num_allocs": 3,
    "bytes_in_use": 1 << 20,
    "peak_bytes_in_use": 3 << 20,
    "bytes_limit": 60 << 30,
    "bytes_reserved": 0,
    "pool_bytes": 8 << 20,
    "peak_pool_bytes": 16 << 20,
}


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[Native]:
    """A stand-in; what a test attaches is detached again."""
    made = Native()
    monkeypatch.setattr(_session, "load_native", lambda: made)
    monkeypatch.setattr(memctl_jax, "load_native", lambda: made)
    for name in ("MEMCTL_RUN_SOCKET", "MEMCTL_DISABLED", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield made
    memctl_agent.detach()
    _session.SESSION.trouble = None


def devices(monkeypatch: pytest.MonkeyPatch, *made: Device) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: [*made, *jax.devices("cpu")])


def wait_for(what: str, done: Any) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def test_jax_on_the_cpu_says_so_in_one_line_and_does_nothing(native: Native, capfd: pytest.CaptureFixture[str]) -> None:
    assert memctl_jax.watch(job="cpu") is False
    lines = capfd.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith("memctl:")]
    assert len(said) == 1 and "no device of jax" in said[0] and "jax[cuda" in said[0], lines
    assert native.started is None and memctl_agent.status()["state"] == "off"


def test_it_works_without_torch() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import memctl_agent.jax as it;"
        "assert it.watch(job='cpu') is False; assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(PACKAGE)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_counters_of_every_gpu_are_sampled_at_marks_and_by_the_thread(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Device(0, STATS), Device(2, {"bytes_in_use": 7})
    devices(monkeypatch, first, second)
    monkeypatch.setattr(memctl_jax, "BOUNDARY_S_MIN", 0.0)
    assert memctl_jax.watch(job="two", every_s=3600, labels={"team": "a"})
    assert native.started is not None
    assert native.started["job"] == "two" and native.started["framework"] == f"jax {jax.__version__}"
    assert [device[0] for device in native.started["devices"]] == [0, 2]
    assert native.started["labels"] == {"team": "a", "xla_bytes_limit.0": str(60 << 30)}
    full = {"allocated": 1 << 20, "peak_allocated": 3 << 20, "reserved": 8 << 20, "peak_reserved": 16 << 20}
    little = {"allocated": 7, "peak_allocated": None, "reserved": None, "peak_reserved": None}
    assert native.counted == [(0, full), (2, little)]
    native.counted.clear()
    with memctl_agent.epoch(0):
        for step in range(3):
            with memctl_agent.step(step):
                first.stats["bytes_in_use"] = step
    assert [taken["allocated"] for device, taken in native.counted if device == 0] == [0, 1, 2, 2]
    assert [mark[:2] for mark in native.marks if mark[0] in (3, 4)] == [(3, 0), (4, 0), (3, 1), (4, 1), (3, 2), (4, 2)]
    status = memctl_agent.status()
    assert status["attached"] and status["level"] == "counters" and status["trouble"] is None


def test_the_thread_samples_until_the_session_ends(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(0, STATS)
    devices(monkeypatch, device)
    assert memctl_jax.watch(job="slow", every_s=0.05)
    wait_for("three samples", lambda: device.asked >= 5)
    memctl_agent.detach()
    assert native.stops == 1
    wait_for("the thread's end", lambda: not any(t.name == "memctl-jax" for t in memctl_jax.threading.enumerate()))


def test_a_device_that_fails_is_told_and_raises_nothing(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(0, STATS)
    devices(monkeypatch, device)
    monkeypatch.setattr(memctl_jax, "BOUNDARY_S_MIN", 0.0)
    assert memctl_jax.watch(job="broken", every_s=0.05)
    device.stats = {"bytes_in_use": "?"}  # type: ignore[dict-item]
    with memctl_agent.step(0):
        pass
    assert "counters cannot be read" in str(memctl_agent.status()["trouble"])
    wait_for("the thread's end", lambda: not any(t.name == "memctl-jax" for t in memctl_jax.threading.enumerate()))


def test_one_source_of_events_a_process(
    native: Native, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    devices(monkeypatch, Device(0, STATS))
    assert memctl_jax.watch(job="one")
    assert memctl_jax.watch(job="two") is False
    assert "recorded already" in capfd.readouterr().err
    assert native.started is not None and native.started["job"] == "one"


def test_disabled_means_nothing(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    devices(monkeypatch, Device(0, STATS))
    monkeypatch.setenv("MEMCTL_DISABLED", "1")
    assert memctl_jax.watch(job="off") is False
    assert native.started is None
