"""The local service, from inside a training: `attach()` starts it and says where to look, and outlives its death.

In the other tests no service is started (`MEMCTL_SERVICE=off`); here each test ends its service.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Memctl, finish, until

ATTACHED = """
import torch, memctl_agent, small
memctl_agent.attach("notebook")
training = small.Training()
training.steps(20)
small.pause("looked-at")
training.steps(20)
small.pause("killed")
training.steps(20)
small.tell("produced", memctl_agent.status()["produced"])
training.report()
"""


@pytest.fixture
def served(memctl: Memctl) -> Iterator[dict[str, str]]:
    """The environment of a user whose commands share a service."""
    environment = {name: value for name, value in memctl.environment.items() if name != "MEMCTL_SERVICE"}
    yield environment
    # A process that attaches uses the user's folder, a command of the test its own one.
    for place in ([], ["--data-dir", str(memctl.folder / "data")]):
        stopped = finish([memctl.command, "daemon", "stop", *place], environment)
        assert stopped.code == 0, stopped


def ask(memctl: Memctl, served: dict[str, str], *words: str) -> Any:
    run = finish([memctl.command, *words, "-q", "-o", "json"], served)
    assert run.code == 0, run
    return json.loads(run.out)


def test_who_attaches_is_asked_while_it_runs_and_survives_its_service(
    memctl: Memctl, script: Any, served: dict[str, str]
) -> None:
    memctl.environment.pop("MEMCTL_SERVICE")
    going = memctl.start([sys.executable, str(script(ATTACHED))], {}, pausing=True)
    going.until_paused("looked-at")
    [line] = [line for line in going.now().lines() if "recording as job notebook" in line]
    assert "`memctl query notebook` shows the job" in line, line

    def events() -> int:
        jobs = ask(memctl, served, "jobs")["jobs"]
        return sum(job["events"] for job in jobs)

    going.until(lambda: events() > 100, "events of a process that runs")
    status = ask(memctl, served, "daemon", "status")
    assert status["sessions_streaming"] == 1, status
    going.go_on("looked-at")
    going.until_paused("killed")
    os.kill(status["pid"], signal.SIGKILL)
    # A query starts another service, unless the training's own connection was faster.
    assert events() > 100
    assert ask(memctl, served, "daemon", "status")["pid"] != status["pid"]
    going.go_on("killed")
    run = going.wait()
    assert run.code == 0, run
    answer = ask(memctl, served, "query", "notebook")
    assert answer["ranks"][0]["events"] >= run.reported("produced") > 100, answer
    assert answer["completeness"]["exact"] and answer["job"]["state"] == "finished", answer


OUTLIVES = """
import os, torch, small
training = small.Training()
training.steps(20)
small.tell("pid", os.getpid())
small.pause("recorded")
small.pause("killed")
training.steps(20)
training.kept.append(torch.empty(1 << 20, device="cuda"))
training.steps(20)
small.tell("status", small.status())
training.report()
small.tell("done", True)
"""


def test_a_training_outlives_its_launcher(memctl: Memctl, script: Any, served: dict[str, str]) -> None:
    memctl.environment.pop("MEMCTL_SERVICE")
    going = memctl.start(
        [memctl.command, "run", "--job", "outlives", "--", sys.executable, str(script(OUTLIVES))], {}, pausing=True
    )
    going.until_paused("recorded")

    def events() -> int:
        return sum(job["events"] for job in ask(memctl, served, "jobs")["jobs"])

    going.until(lambda: events() > 100, "events of the first half")
    before = events()
    going.process.kill()
    assert going.process.wait(60) == -signal.SIGKILL
    going.go_on("recorded")
    going.until_said("is recorded on by the process itself")
    going.go_on("killed")
    status = going.until_said("TELL done").reported("status")
    assert status["attached"] and status["mode"] == "thread" and status["level"] == "full", status
    until(lambda: events() >= before + status["produced"], lambda: (before, status, events()))
    answer = ask(memctl, served, "query", "outlives")
    sites = json.dumps(ask(memctl, served, "sites", "outlives", "--end"))
    assert answer["job"]["state"] == "finished" and "small.py" in sites, (answer["job"], sites[:2000])


LEAKS = """
import pathlib, os, time, torch, small
training = small.Training()
seen = pathlib.Path(os.environ["PAUSES"], "seen")
for step in range(6000):
    training.step()
    training.kept.append(torch.empty(1 << 20, device="cuda"))
    if seen.exists():
        break
    time.sleep(0.01)
"""


def test_what_is_found_is_one_line_while_it_runs(memctl: Memctl, script: Any, served: dict[str, str]) -> None:
    memctl.environment.pop("MEMCTL_SERVICE")
    going = memctl.start_recorded("leaky", sys.executable, str(script(LEAKS)), settings={}, pausing=True)

    def found() -> list[str]:
        return [line for line in going.now().err.splitlines() if line.startswith("memctl: leaky: ")]

    going.until(lambda: bool(found()), "a line about the alert")
    assert going.process.poll() is None, "it is said while the training goes on"
    [line] = found()
    assert "grow" in line and "train.py:" in line, line
    (going.pauses / "seen").touch()
    run = going.wait()
    assert run.code == 0, run
    assert found() == [line], "it is said once"
    words = (" WARN ", " ERROR ", "memctl_daemon::", "tenant=")
    assert not [said for said in run.err.splitlines() if any(word in said for word in words)], run
