"""`memctl holders`, from the command line into a training and back: a growing list is searched while it grows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Daemon, Going, Memctl

LEAK = """
import pathlib
import sys
import torch
import small

training = small.Training()
KEPT = []

def remember():
    KEPT.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))

end = pathlib.Path(sys.argv[1])
loss = 0.0
while not end.exists():
    loss = training.step(torch.randn(8, 32))
    if len(KEPT) < 64:
        remember()
print("ended")
"""


@pytest.fixture
def daemon(memctl: Memctl) -> Iterator[Daemon]:
    running = Daemon(memctl)
    yield running
    running.stop()


def started(memctl: Memctl, train: Any, daemon: Daemon, job: str, **settings: str) -> Going:
    command = [sys.executable, str(train), str(memctl.folder / f"{job}.end")]
    return memctl.start_recorded(job, *command, settings={"MEMCTL_DAEMON": daemon.url, **settings})


def is_known(memctl: Memctl, daemon: Daemon, job: str) -> bool:
    """Whether the site has reached the daemon."""
    run = memctl("sites", "--job", job, "--daemon", daemon.url)
    return run.code == 0 and "remember" in run.out


def test_the_list_that_holds_a_sites_tensors_is_named(memctl: Memctl, script: Any, daemon: Daemon) -> None:
    train = script(LEAK)
    going = started(memctl, train, daemon, "kept")
    going.until(lambda: is_known(memctl, daemon, "kept"), "the site is known")
    # The budget is not tested here, because the machine is busy with other tests.
    question = ["holders", "--job", "kept", "--site", "remember", "--budget", "5s", "--daemon", daemon.url]
    answer = memctl.answer(*question)
    [holder] = answer["holders"]
    assert holder["kind"] == "list" and "list `KEPT` of module `__main__`" in holder["sentence"], answer
    assert answer["found_blocks"] == answer["asked_blocks"] == holder["blocks"] > 0, answer
    assert holder["blocks"] <= holder["tensors"] <= 64, answer
    page = memctl(*question)
    assert page.code == 0 and "list `KEPT` of module `__main__`" in page.out, page
    (memctl.folder / "kept.end").touch()
    run = going.wait()
    assert run.code == 0 and run.out == "ended\n", run


def test_a_process_that_forbids_it_is_not_searched(memctl: Memctl, script: Any, daemon: Daemon) -> None:
    going = started(memctl, script(LEAK), daemon, "closed", MEMCTL_HOLDERS="off")
    going.until(lambda: is_known(memctl, daemon, "closed"), "the site is known")
    refused = memctl("holders", "--job", "closed", "--site", "remember", "--daemon", daemon.url)
    assert refused.code != 0 and "MEMCTL_HOLDERS" in refused.err, refused
    (memctl.folder / "closed.end").touch()
    assert going.wait().code == 0
