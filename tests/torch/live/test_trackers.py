"""`summary()` and `log_to()`: real trackers, offline, in trainings that a real daemon records."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Memctl, Run, finish

# Ten epochs of eight steps. Each epoch keeps 1 MiB. The epochs go on until the daemon's floor has arrived.
TRAINING = """
import json, os, time
import torch, memctl_agent, small
SETUP
memctl_agent.attach(job="tracked", daemon=os.environ.get("DAEMON"))
SEEN = []
assert memctl_agent.log_to(lambda values, step: SEEN.append((step, values)), every_steps=4, verdict_s=0.1)
LOG
torch.backends.cudnn.enabled = False
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept, step, epoch, began = [], 0, 0, time.monotonic()
while epoch < 10 or ("DAEMON" in os.environ and time.monotonic() < began + 120 and not DONE):
    with memctl_agent.epoch(epoch):
        for _ in range(8):
            with memctl_agent.step(step):
                loss = model(torch.ones(64, 256, device="cuda")).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            step += 1
        kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    epoch += 1
    if epoch >= 10:
        time.sleep(0.2)
small.tell("epochs", epoch)
small.tell("seen", SEEN)
small.tell("peak", torch.cuda.max_memory_allocated())
small.tell("summary", memctl_agent.summary(daemon_s=60 if "DAEMON" in os.environ else 0.2))
small.tell("short", memctl_agent.summary(daemon_s=0))
END
"""

HAS_FLOOR = '"memctl/floor_bytes" in SEEN[-1][1] and SEEN[-1][1]["memctl/floor_bytes"] > 1 << 20'

# No daemon answers at this address, so no daemon of this machine gets the recording.
NOWHERE = "http://127.0.0.1:9"


def training(setup: str = "", log: str = "", end: str = "", done: str = HAS_FLOOR) -> str:
    found = TRAINING.replace("SETUP", setup).replace("LOG", log).replace("DONE", f"({done})")
    return re.sub(r"^END$", lambda _: end, found, flags=re.MULTILINE)


class Served:
    """A daemon with a page, and its addresses."""

    def __init__(self, memctl: Memctl) -> None:
        places = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
        argv = [memctl.command, "daemon", "--data-dir", str(memctl.folder / "daemon"), *places]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=memctl.environment
        )
        assert self.process.stdout is not None
        self.url, self.page = re.findall(r"http://[0-9.]+:\d+", self.process.stdout.readline())


@pytest.fixture
def served(memctl: Memctl) -> Iterator[Served]:
    daemon = Served(memctl)
    yield daemon
    daemon.process.kill()
    daemon.process.wait()


def run(memctl: Memctl, script: Any, text: str, **settings: str) -> Run:
    ran = finish([sys.executable, str(script(text))], {**memctl.environment, **settings})
    assert ran.code == 0, ran
    return ran


def check_values(seen: list[Any], peak: int) -> None:
    """The numbers that every tracker gets."""
    steps = [step for step, _ in seen]
    assert steps == sorted(steps) and {0, 4, 8, 12} <= set(steps), steps
    last = seen[-1][1]
    assert last["memctl/peak_allocated_bytes"] == peak >= last["memctl/allocated_bytes"] > 10 << 20, last
    assert last["memctl/reserved_bytes"] <= last["memctl/peak_reserved_bytes"] and last["memctl/ooms"] == 0, last
    # (A forward pass that the program does not mark begins with the end of the step before.)
    for name in ("memctl/allocated_after_forward_bytes", "memctl/allocated_after_backward_bytes"):
        levels = [values[name] for _, values in seen if name in values]
        assert levels and 0 < min(levels) <= max(levels) <= peak, (name, seen[:4])


def test_a_summary_has_the_counters_and_the_daemons_verdict(memctl: Memctl, script: Any, served: Served) -> None:
    ran = run(memctl, script, training(), DAEMON=served.url)
    seen, found = ran.reported("seen"), ran.reported("summary")
    check_values(seen, ran.reported("peak"))
    assert found["peak_allocated_bytes"] == ran.reported("peak") and found["recording"] == "full", found
    assert found["job"] == "tracked" and found["page_url"] == f"{served.page}/jobs/tracked", found
    assert found["verdict"] in ("growing", "filling", "not_enough_data") and found["verdict_sentence"], found
    assert found["floor_bytes"] >= 9 << 20 and found["epoch_peak_allocated_bytes"] <= found["peak_allocated_bytes"]
    assert found["growth_bytes_per_epoch"] == 1 << 20, found
    assert all(type(value) in (int, float, str, type(None)) for value in found.values()), "it is flat"
    assert "verdict" not in ran.reported("short") and ran.reported("short")["allocated_bytes"] > 0
    assert not [line for line in ran.lines() if "recording as job" not in line], ran


def test_without_a_daemon_the_counters_stay_and_the_reason_is_there(memctl: Memctl, script: Any) -> None:
    ran = run(memctl, script, training(), MEMCTL_DAEMON=NOWHERE)
    check_values(ran.reported("seen"), ran.reported("peak"))
    found = ran.reported("summary")
    peak = ran.reported("peak")
    assert found["peak_allocated_bytes"] == peak and found["daemon_reason"] and "verdict" not in found, found
    assert not any("memctl/floor_bytes" in values for _, values in ran.reported("seen"))


NOTHING = """
import memctl_agent, small
small.tell("before", memctl_agent.summary())
memctl_agent.attach(job="none")
import torch
small.tell("summary", memctl_agent.summary())
small.tell("known", [memctl_agent.log_to(target) for target in (None, 7, print)])
torch.ones(8).sum()
"""


def test_without_a_device_nothing_raises(memctl: Memctl, script: Any) -> None:
    ran = run(memctl, script, NOTHING, FAKE_GPU_COUNT="0")
    for name in ("before", "summary"):
        found = ran.reported(name)
        assert found["reason"] == "CUDA is not in use in this process" and "not recorded" in found["daemon_reason"]
    assert ran.reported("known") == [False, False, True]
    assert sum("log_to() takes a run of Weights & Biases" in line for line in ran.lines()) == 2, ran


FAILS = """
def failing(values, step):
    raise OSError("the server is away")
assert memctl_agent.log_to(failing, every_steps=1)
"""


def test_a_tracker_that_fails_is_left_alone(memctl: Memctl, script: Any) -> None:
    ran = run(memctl, script, training(log=FAILS), MEMCTL_DAEMON=NOWHERE)
    said = [line for line in ran.lines() if "gets no further values" in line]
    assert said == ["memctl: the function gets no further values: OSError: the server is away"], ran
    check_values(ran.reported("seen"), ran.reported("peak"))


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is installed for the last torch only")


def test_tensorboard(memctl: Memctl, script: Any, served: Served, tmp_path: pathlib.Path) -> None:
    needs("tensorboard")
    log = f"""
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter({str(tmp_path / "runs")!r})
assert memctl_agent.log_to(writer, verdict_s=0.1)
"""
    ran = run(memctl, script, training(log=log, end="memctl_agent.detach(); writer.close()"), DAEMON=served.url)
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    found = EventAccumulator(str(tmp_path / "runs"))
    found.Reload()
    scalars = found.Scalars("memctl/peak_allocated_bytes")
    assert scalars[-1].value == ran.reported("peak") and {0, 10, 20} <= {scalar.step for scalar in scalars}
    assert found.Scalars("memctl/floor_bytes")[-1].value > 1 << 20
    [text] = {event.tensor_proto.string_val[0] for event in found.Tensors("memctl/page_url/text_summary")}
    assert text.decode() == f"{served.page}/jobs/tracked"
    assert found.Tensors("memctl/verdict/text_summary")


def test_mlflow(memctl: Memctl, script: Any, served: Served, tmp_path: pathlib.Path) -> None:
    needs("mlflow")
    place = (tmp_path / "mlruns").as_uri()
    log = f"""
import mlflow
mlflow.set_tracking_uri({place!r})
run = mlflow.start_run()
assert memctl_agent.log_to(mlflow, verdict_s=0.1)
"""
    end = """
memctl_agent.detach()
client = mlflow.MlflowClient()
history = client.get_metric_history(run.info.run_id, "memctl/peak_allocated_bytes")
small.tell("history", [(one.step, one.value) for one in history])
small.tell("metrics", client.get_run(run.info.run_id).data.metrics)
small.tell("tags", client.get_run(run.info.run_id).data.tags)
"""
    # (MLflow 3 prefers a database, which the package for clients cannot open.)
    settings = {"DAEMON": served.url, "MLFLOW_ALLOW_FILE_STORE": "true"}
    ran = run(memctl, script, training(log=log, end=end), **settings)
    history = ran.reported("history")
    assert history[-1][1] == ran.reported("peak") and {0, 10, 20} <= {step for step, _ in history}
    assert ran.reported("metrics")["memctl/floor_bytes"] > 1 << 20, ran
    tags = ran.reported("tags")
    assert tags["memctl/page_url"] == f"{served.page}/jobs/tracked" and tags["memctl/verdict_sentence"], tags


def test_wandb(memctl: Memctl, script: Any, served: Served, tmp_path: pathlib.Path) -> None:
    needs("wandb")
    log = f"""
import wandb
run = wandb.init(mode="offline", project="p", dir={str(tmp_path)!r}, settings=wandb.Settings(console="off"))
assert memctl_agent.log_to(run, verdict_s=0.1)
"""
    end = """
run.log({"loss": 1.0})
small.tell("step", run.step)
small.tell("values", {key: value for key, value in dict(run.summary).items() if key.startswith("memctl/")})
memctl_agent.detach()
run.finish()
"""
    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    ran = run(memctl, script, training(log=log, end=end), DAEMON=served.url, **settings)
    values = ran.reported("values")
    assert values["memctl/page_url"] == f"{served.page}/jobs/tracked" and values["memctl/verdict_sentence"], values
    # memctl's values are part of the program's own row, whose number it does not change.
    assert ran.reported("step") == 1, ran
    # What was written: the file has the rows as JSON texts.
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    written = file.read_bytes()
    assert b"memctl/peak_allocated_bytes" in written and str(ran.reported("peak")).encode() in written


def test_the_examples_of_the_documentation_run(memctl: Memctl, script: Any, tmp_path: pathlib.Path) -> None:
    page = pathlib.Path(__file__).parents[3] / "docs" / "integrations.md"
    section = page.read_text().split("## Experiment trackers", 1)[1].split("\n## ", 1)[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(examples) >= 4
    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    settings |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MEMCTL_DAEMON": NOWHERE}
    settings["MLFLOW_TRACKING_URI"] = (tmp_path / "mlruns").as_uri()
    for number, example in enumerate(examples):
        for package in ("wandb", "mlflow", "tensorboard"):
            if package in example:
                needs(package)
        end = "import small\nsmall.tell('summary', memctl_agent.summary())"
        text = f"import os\nos.chdir({str(tmp_path)!r})\n{example}\n{end}"
        ran = run(memctl, lambda text, at=number: script(text, f"example{at}.py"), text, **settings)
        assert ran.reported("summary")["peak_allocated_bytes"] > 0, ran
        assert not [line for line in ran.lines() if "gets no further" in line], ran
