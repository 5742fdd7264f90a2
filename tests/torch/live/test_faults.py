"""Faults around a training: memctl off; a daemon that is absent, slow or killed; other peers; a full disk.

Guarantees checked: the training prints and ends as without memctl; what could be stored is stored and counted; the
fault itself happened.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import Daemon, Memctl, Plain, Run, both, same
from peers import NASTY, Absent, Peer, Slow

SCRIPT = """
import small
small.attach_if_wanted()
training = small.Training()
training.steps(20)
small.pause("half")
training.steps(20)
small.tell("status", small.status())
training.report()
"""
DISABLED = """
import sys
import small
small.attach_if_wanted()
small.Training().report()
small.tell("native", "memctl_agent._native" in sys.modules)
small.tell("agent", "memctl_agent" in sys.modules)
maps = [line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")]
small.tell("regions", [name for name in maps if "memfd:memctl" in name or "memctl_agent" in name])
"""


@pytest.fixture
def daemon(memctl: Memctl) -> Iterator[Daemon]:
    running = Daemon(memctl)
    yield running
    running.stop()


def attached(memctl: Memctl, job: str, script: pathlib.Path, **settings: str) -> Run:
    """Runs the script, which attaches by itself, without the launcher."""
    return memctl.start([sys.executable, str(script)], {"ATTACH": job, **settings}).wait()


def exact(answer: dict[str, Any], produced: int, state: str = "finished") -> None:
    """Asserts that everything produced is stored."""
    completeness = answer["completeness"]
    assert answer["job"]["state"] == state, answer["job"]
    assert completeness["exact"] and completeness["events_dropped"] == 0 and completeness["gaps"] == 0, completeness
    assert completeness["events_stored"] >= produced > 1000, (completeness, produced)


def test_switched_off(memctl: Memctl, script: Any, plain: Plain) -> None:
    path = script(DISABLED)
    expected = plain(memctl, path)
    off = {"MEMCTL_DISABLED": "1"}
    by_launcher, by_hand = both(
        lambda: memctl.record("off", sys.executable, str(path), **off), lambda: attached(memctl, "off", path, **off)
    )
    for run, imported in ((by_launcher, False), (by_hand, True)):
        same(expected, run)
        assert run.reported("agent") is imported and run.reported("native") is False and run.reported("regions") == []
        assert not run.lines(), run
    assert not (memctl.folder / "data").exists()
    # Without MEMCTL_DISABLED, the same script loads the agent, the native module and its memory regions.
    on = memctl.record("on", sys.executable, str(path))
    same(expected, on)
    assert on.reported("native") and on.reported("regions") and memctl.answer("query", "--job", "on")


@pytest.mark.parametrize("make", NASTY, ids=lambda make: make.__name__.lower())
def test_faulty_peer_instead_of_a_daemon(memctl: Memctl, script: Any, plain: Plain, make: Callable[[], Peer]) -> None:
    path, peer = script(SCRIPT), make()
    at = {"MEMCTL_DAEMON": peer.url}
    try:
        by_launcher, by_hand = both(
            lambda: memctl.start_recorded("away", sys.executable, str(path), settings=at).wait(),
            lambda: attached(memctl, "away", path, **at),
        )
        assert peer.happened()
    finally:
        peer.stop()
    for run in (by_launcher, by_hand):
        same(plain(memctl, path), run)
        status = run.reported("status")
        assert status["attached"] and status["level"] == "full" and status["produced"] > 1000, status
        assert status["dropped"] == 0 and not status["stored"], status
    # The launcher spools to disk and reports it; the next run with this destination delivers the spool.
    assert any("could not be delivered" in line for line in by_launcher.lines()), by_launcher
    daemon = Daemon(memctl, int(peer.url.rsplit(":", 1)[1]))
    try:
        assert memctl("run", "--", "true", **at).code == 0
        exact(memctl.answer("query", "--job", "away", "--daemon", peer.url), by_launcher.reported("status")["produced"])
    finally:
        daemon.stop()


def test_slow_daemon(memctl: Memctl, script: Any, plain: Plain, daemon: Daemon) -> None:
    path, slow = script(SCRIPT), Slow(daemon.port)
    at = {"MEMCTL_DAEMON": slow.url}
    try:
        by_launcher, by_hand = both(
            lambda: memctl.record("slow", sys.executable, str(path), **at),
            lambda: attached(memctl, "slow-by-hand", path, **at),
        )
        assert slow.happened()
    finally:
        slow.stop()
    for run in (by_launcher, by_hand):
        same(plain(memctl, path), run)
    answer = memctl.answer("query", "--job", "slow", "--daemon", daemon.url)
    exact(answer, by_launcher.reported("status")["produced"])
    # Without a launcher the process does not wait for a slow daemon: what arrived is the beginning, without a gap.
    at_daemon = ("--daemon", daemon.url)
    part = [event[:2] for event in memctl.events("slow-by-hand", flags=at_daemon)]
    whole = [event[:2] for event in memctl.events("slow", flags=at_daemon)]
    assert part and part == whole[: len(part)]


def test_daemon_killed_and_started_again(memctl: Memctl, script: Any, plain: Plain, daemon: Daemon) -> None:
    path, at = script(SCRIPT), {"MEMCTL_DAEMON": daemon.url}
    launched = memctl.start_recorded("again", sys.executable, str(path), pausing=True, settings=at)
    by_hand = memctl.start([sys.executable, str(path)], {"ATTACH": "again-by-hand", **at}, pausing=True)
    goings = {"again": launched, "again-by-hand": by_hand}
    for going in goings.values():
        going.until_paused("half")
    # Some events of each are already stored.
    for job, going in goings.items():
        going.until(lambda job=job: stored(memctl, job, daemon) > 0, f"events of {job}")
    before = {job: stored(memctl, job, daemon) for job in goings}
    daemon.kill()
    daemon.start()
    for job in goings:
        # Data that was acknowledged before the kill is still stored after the restart.
        assert stored(memctl, job, daemon) >= before[job]
    for going in goings.values():
        going.go_on("half")
    for job, going in goings.items():
        run = going.wait()
        same(plain(memctl, path), run)
        answer = memctl.answer("query", "--job", job, "--daemon", daemon.url)
        if job == "again":
            exact(answer, run.reported("status")["produced"])
        assert answer["completeness"]["events_dropped"] == 0, answer["completeness"]


def stored(memctl: Memctl, job: str, daemon: Daemon) -> int:
    """Events of a job that are durable."""
    run = memctl("query", "--job", job, "--daemon", daemon.url, "-o", "csv")
    if run.code != 0:
        return 0
    return int(memctl.answer("query", "--job", job, "--daemon", daemon.url)["completeness"]["events_stored"])


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "memctl-test", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: pathlib.Path) -> None:
    """Fills the rest of a file system."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


@pytest.mark.parametrize("where", ["store", "spool"])
def test_disk_full(memctl: Memctl, script: Any, plain: Plain, small_disk: pathlib.Path, where: str) -> None:
    path = script(SCRIPT)
    peer = Absent()
    at = {"MEMCTL_DAEMON": peer.url} if where == "spool" else {}
    argv = [memctl.command, "--data-dir", str(small_disk), "run", "--patience", "1s", "--job", "full"]
    going = memctl.start([*argv, "--", sys.executable, str(path)], at, pausing=True)
    going.until_paused("half")
    fill(small_disk)
    assert os.statvfs(small_disk).f_bavail == 0
    going.go_on("half")
    run = going.wait()
    peer.stop()
    same(plain(memctl, path), run)
    status = run.reported("status")
    assert status["attached"] and status["produced"] > 1000, status
    # memctl reports how much is lost, and the training succeeds.
    said = [line for line in run.lines() if "had no room and are lost" in line]
    lost = int(said[0].split()[1].replace(",", "")) if said else 0
    assert 0 < lost <= status["produced"] + 100, run
    assert "panicked" not in run.err, run
