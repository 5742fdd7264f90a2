"""A leak until the device is full: one cause, one finding, one critical alert, and the time to out of memory half way.

Genuine torch on fake devices of 2 GiB, run until out of memory. The figure for half the way is queried afterwards: an
answer about a stretch of time uses only what was known within it.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from typing import Any

import pytest

from conftest import LIMIT_S, Daemon, Going, Memctl
from test_judged import Alertmanager, alertmanager, daemon  # noqa: F401

# (The fixtures above are used by their names.)
LEAK = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import small

training = small.Training()
loader = DataLoader(TensorDataset(torch.randn(48, 32)), batch_size=8)
history = []

def remember(size):
    history.append(torch.empty(size << 20, dtype=torch.uint8, device="cuda"))

for epoch in range(40):
    for (batch,) in loader:
        training.step(batch)
    remember(120)
"""


def critical(alerts: list[Any]) -> list[Any]:
    return [alert for alert in alerts if alert["labels"]["severity"] == "critical"]


def test_a_leak_until_out_of_memory_is_one_finding_and_one_critical_alert(
    memctl: Memctl,
    script: Any,
    daemon: Daemon,  # noqa: F811
    alertmanager: Alertmanager,  # noqa: F811
) -> None:
    run = memctl.record("full", sys.executable, str(script(LEAK)), MEMCTL_DAEMON=daemon.url, FAKE_GPU_MIB="2048")
    assert run.code == 1 and "OutOfMemoryError" in run.err, run

    answer = memctl.answer("query", "--job", "full", "--daemon", daemon.url)
    serious = [finding for finding in answer["findings"] if finding["severity"] != "info"]
    assert [finding["kind"] for finding in serious] == ["leak"], serious
    [leak] = serious
    assert leak["severity"] == "critical" and "remember (train.py:" in leak["title"], leak
    assert "rank 0 ran out of memory" in leak["title"] and "120 MiB" in leak["title"], leak
    assert leak["time_to_oom_seconds"] is None, leak
    assert isinstance(leak["evidence"]["oom_stranded_bytes"], int), leak
    oom = memctl.answer("oom", "--job", "full", "--daemon", daemon.url)
    assert [failure["cause"] for failure in oom["failures"]] == ["leak"], oom
    page = memctl("query", "--job", "full", "--daemon", daemon.url).out
    # (The page quotes PyTorch's own message, which always gives advice against fragmentation.)
    said = [line for line in page.splitlines() if "CUDA out of memory" not in line]
    assert len(said) > 10 and not any("fragmentation" in line for line in said), page

    deadline = time.monotonic() + LIMIT_S
    while True:
        found = critical(alertmanager.active())
        if len(found) == 1 and "ran out of memory" in found[0]["annotations"]["summary"]:
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    assert found[0]["labels"]["alertname"] == "MemoryLeak", found


# Each retains memory until the device is full; they differ in what else they do meanwhile.
COURSE = """
import time
import torch
from torch.utils.data import DataLoader
import small

training = small.Training()
kept = []

def keep(size):
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

def evaluate(seconds):
    training.model.eval()
    with torch.no_grad():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            training.model(torch.randn(8, 32).cuda())
            time.sleep(0.02)
    training.model.train()

small.tell("began", time.time())
for epoch in range(10_000):
    for step, batch in enumerate(DataLoader(torch.randn(8 * STEPS, 32), batch_size=8)):
        training.step(batch)
        PER_STEP
        time.sleep(0.02)
    PER_EPOCH
"""
MIB = 1 << 20
COURSES = {
    "every_step": (20, f"keep(2 * {MIB})", "pass"),
    "every_epoch": (20, "pass", f"keep(45 * {MIB})"),
    "long_evaluations": (12, f"keep(4 * {MIB})", "evaluate(0.8)"),
    "longer_evaluations": (25, f"keep(5 * {MIB})", "evaluate(2.0)"),
    "checkpoints": (25, f"keep(3 * {MIB})", "time.sleep(0.9) if epoch % 2 == 1 else None"),
    "checkpoints_in_epochs": (60, f"keep(4 * {MIB}); time.sleep(0.7 if step % 15 == 14 else 0)", "pass"),
}
NEAR = (0.7, 1.4)


def seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@pytest.fixture
def plain_daemon(memctl: Memctl) -> Any:
    running = Daemon(memctl)
    yield running
    running.stop()


def test_the_time_to_out_of_memory_is_true_half_way(memctl: Memctl, script: Any, plain_daemon: Daemon) -> None:
    url = plain_daemon.url
    going: dict[str, Going] = {}
    for name, (steps, per_step, per_epoch) in COURSES.items():
        text = COURSE.replace("STEPS", str(steps)).replace("PER_STEP", per_step).replace("PER_EPOCH", per_epoch)
        settings = {"MEMCTL_DAEMON": url, "FAKE_GPU_MIB": "2048", "FAKE_GPU_STATE": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script(text, f"{name}.py"))]
        # Several jobs at once load a small machine, so the daemon may respond late.
        going[name] = memctl.start_recorded(name, *command, settings=settings, patience="60s")
    wrong = []
    for name, course in going.items():
        run = course.wait()
        assert run.code == 1 and "OutOfMemoryError" in run.err, (name, run)
        began = run.reported("began")
        stored = memctl("oom", "--job", name, "--daemon", url, "-o", "json")
        assert stored.code == 0, (name, stored, run)
        [failure] = json.loads(stored.out)["failures"]
        ended = seconds(failure["at"])
        half = (began + ended) / 2
        until = datetime.datetime.fromtimestamp(half, datetime.timezone.utc).isoformat().replace("+00:00", "Z")
        answer = memctl.answer("query", "--job", name, "--until", until, "--daemon", url)
        times = [finding["time_to_oom_seconds"] for finding in answer["findings"] if finding["kind"] == "leak"]
        figures = [figure for figure in times if figure is not None]
        ratio = figures[0] / (ended - half) if len(figures) == 1 else None
        if ratio is None or not NEAR[0] <= ratio <= NEAR[1]:
            wrong.append((name, ratio, ended - half, answer["findings"]))
    assert not wrong, wrong
