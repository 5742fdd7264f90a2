"""A rank, the launcher or the daemon dies in the middle of a job of four ranks.

Each rank is a process of its own under one launcher, so that the others train on (torchrun would end them with the
first). Guarantees checked: all events before the death are stored, no acknowledged event is lost, the job says how the
rank died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Daemon, Going, Memctl, until

RANKS = 4
# Starts the ranks and waits until all have ended, with any exit code.
SPAWNER = """
import os, subprocess, sys
def environment(rank):
    return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4"}
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env=environment(rank)) for rank in range(4)]
print("codes", *(rank.wait() for rank in ranks))
"""
RANK = """
import ctypes, os, signal
import small
rank = int(os.environ["RANK"])
training = small.Training()
training.steps(10)
small.pause("half")
if rank == 1 and "DIE":
    training.steps(5)
    small.tell("produced", small.status()["produced"])
    exec("DIE")
training.steps(10)
small.tell(f"produced-{rank}", small.status().get("produced"))
training.report()
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
SEGFAULT = "ctypes.string_at(0)"


@pytest.fixture
def daemon(memctl: Memctl) -> Iterator[Daemon]:
    running = Daemon(memctl)
    yield running
    running.stop()


def begin(memctl: Memctl, script: Any, daemon: Daemon, die: str) -> Going:
    """Four ranks, paused in the middle."""
    spawner, rank = script(SPAWNER, "spawner.py"), script(RANK.replace("DIE", die), "rank.py")
    going = memctl.start_recorded(
        "deaths", sys.executable, str(spawner), str(rank), pausing=True, settings={"MEMCTL_DAEMON": daemon.url}
    )
    going.until_paused(*(f"half{rank}" for rank in range(RANKS)))
    return going


def answered(memctl: Memctl, daemon: Daemon) -> dict[str, Any]:
    return memctl.answer("query", "--job", "deaths", "--daemon", daemon.url)


def by_rank(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {rank["rank"]: rank for rank in answer["ranks"]}


@pytest.mark.parametrize(
    ("die", "code", "words"),
    [(KILLED, -9, "killed by signal 9 (SIGKILL)"), (SEGFAULT, -11, "killed by signal 11 (SIGSEGV)")],
    ids=["killed", "segfault"],
)
def test_a_rank_dies(memctl: Memctl, script: Any, daemon: Daemon, die: str, code: int, words: str) -> None:
    going = begin(memctl, script, daemon, die)
    going.go_on("half")
    run = going.wait()
    # It died of that, and the others trained on to the same result.
    assert run.out.splitlines()[-1] == f"codes 0 {code} 0 0", run
    results = run.out.splitlines()[:-1]
    assert len(results) == RANKS - 1 and len(set(results)) == 1, run
    ranks = by_rank(answered(memctl, daemon))
    assert ranks[1]["failure"] == words and ranks[1]["state"] == "failed", ranks[1]
    for number in range(RANKS):
        produced = run.reported("produced" if number == 1 else f"produced-{number}")
        assert ranks[number]["completeness"]["events_dropped"] == 0
        assert ranks[number]["events"] >= produced > 500, (number, ranks[number], produced)
        if number != 1:
            assert ranks[number]["state"] == "finished" and ranks[number]["failure"] is None, ranks[number]
    # The allocated memory of the others at that moment can be queried.
    died_at = max(point["last_at"] for point in timeline(memctl, daemon, 1))
    sites = memctl.answer("sites", "--job", "deaths", "--rank", "0,2,3", "--at", died_at, "--daemon", daemon.url)
    assert [rank["rank"] for rank in sites["ranks"]] == [0, 2, 3]
    assert all(rank["allocated_bytes"] > 0 and rank["sites"] for rank in sites["ranks"]), sites


def timeline(memctl: Memctl, daemon: Daemon, rank: int) -> list[dict[str, Any]]:
    answer = memctl.answer("timeline", "--job", "deaths", "--rank", str(rank), "--daemon", daemon.url)
    return answer["ranks"][0]["points"]


def test_the_launcher_dies(memctl: Memctl, script: Any, daemon: Daemon) -> None:
    going = begin(memctl, script, daemon, "")
    acknowledged = until_stored(memctl, daemon, going)
    os.kill(going.pid, signal.SIGKILL)
    assert going.process.wait(10) == -9

    # On a busy machine, ranks that go on at once end before they notice: all four have to have a new session.
    def own_sessions() -> int:
        [job] = memctl.answer("jobs", "--daemon", daemon.url)["jobs"]
        return job["earlier_sessions"]

    until(lambda: own_sessions() == RANKS, own_sessions)
    going.go_on("half")
    # The launcher is dead, so the test waits for the ranks' own output.
    run = going.until_said("codes")
    results = [line for line in run.out.splitlines() if line.startswith("result")]
    assert len(results) == RANKS and len(set(results)) == 1, run
    assert "codes 0 0 0 0" in run.out, run
    assert "is recorded on by the process itself" in run.err, run
    # Acknowledged events are in the session that ended with the launcher; each rank goes on in a session of its own.
    [job] = memctl.answer("jobs", "--daemon", daemon.url)["jobs"]
    assert job["events"] >= sum(acknowledged.values()) > 0, (job, acknowledged)
    ranks = by_rank(answered(memctl, daemon))
    for number in acknowledged:
        assert ranks[number]["events"] > 0 and ranks[number]["completeness"]["events_dropped"] == 0, ranks[number]
    # The next run delivers the launcher's spool.
    assert memctl("run", "--", "true", MEMCTL_DAEMON=daemon.url).code == 0
    assert answered(memctl, daemon)["completeness"]["gaps"] == 0


def until_stored(memctl: Memctl, daemon: Daemon, going: Going) -> dict[int, int]:
    """Waits until each rank has durable events; returns them."""
    found: dict[int, int] = {}

    def all_have_some() -> bool:
        if memctl("query", "--job", "deaths", "--daemon", daemon.url).code != 0:
            return False
        found.update({number: rank["events"] for number, rank in by_rank(answered(memctl, daemon)).items()})
        return len(found) == RANKS and all(found.values())

    going.until(all_have_some, "events of every rank")
    return found


def test_the_daemon_dies(memctl: Memctl, script: Any, daemon: Daemon) -> None:
    going = begin(memctl, script, daemon, "")
    acknowledged = until_stored(memctl, daemon, going)
    daemon.kill()
    with contextlib.suppress(AssertionError):
        answered(memctl, daemon)
        raise RuntimeError("a dead daemon answered")
    going.go_on("half")
    daemon.start()
    run = going.wait()
    assert run.out.splitlines()[-1] == "codes 0 0 0 0", run
    answer = answered(memctl, daemon)
    completeness = answer["completeness"]
    assert completeness["exact"] and completeness["events_dropped"] == 0 and completeness["gaps"] == 0, completeness
    for number, rank in by_rank(answer).items():
        assert rank["events"] >= max(acknowledged[number], run.reported(f"produced-{number}")), (rank, acknowledged)
        assert rank["state"] == "finished", rank
