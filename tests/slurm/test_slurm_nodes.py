"""Launches on several nodes of a real Slurm without a daemon that anyone set up: the job has a daemon of its own.

All nodes of the cluster are one machine with one home folder, but each node has its own name. `MEMCTL_SHARED_DIR` names
the folder that they share.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import Cluster, free_ports
from submitted import User
from unpacked import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it runs")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("c"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def user(tmp_path: pathlib.Path, cluster: Cluster) -> Iterator[User]:
    made = User(tmp_path, cluster)
    made.daemon.stop()
    del made.environment["MEMCTL_DAEMON"]
    made.environment |= {
        "MEMCTL_SERVICE": "on",
        "MEMCTL_SERVICE_IDLE": "20s",
        "MEMCTL_SHARED_DIR": str(tmp_path / "shared"),
    }
    try:
        yield made
    finally:
        cluster.command("scancel", "--full", "--user=root")
        for folder in jobs_of(made):
            made.ask("daemon", "stop", "-q", "--data-dir", str(folder))
        made.ask("daemon", "stop", "-q")


def jobs_of(user: User) -> list[pathlib.Path]:
    """The folders of jobs on several nodes."""
    return sorted((user.folder / "shared" / "jobs").glob("*"))


def is_one_run(user: User, job: str, name: str, hosts: dict[int, str]) -> dict[str, Any]:
    """The job is one complete run, which any host finds by its name and by Slurm's id once the job has ended."""
    [folder] = jobs_of(user)
    assert not (folder / "host").exists() and not (folder / "daemon.json").exists(), list(folder.iterdir())
    by_name, by_id = (user.answer("query", word) for word in (f"{name}-{job}", f"slurm:{job}"))
    assert by_name["job"] == by_id["job"], (by_name["job"], by_id["job"])
    assert {rank["rank"]: rank["host"] for rank in by_name["ranks"]} == hosts, by_name["ranks"]
    assert by_name["completeness"]["exact"] and by_name["job"]["run"] == 1, by_name
    assert {rank["steps"] for rank in by_name["ranks"]} == {10}, by_name["ranks"]
    return by_name


def test_four_nodes_of_four_ranks(user: User) -> None:
    job = user.submit("ddp", "srun ./record python train.py", "-N4 --ntasks-per-node=4", FAKE_GPU_COUNT="4")
    user.until_over(job)
    is_one_run(user, job, "ddp", {rank: f"node{rank // 4 + 1}" for rank in range(16)})
    # Each task has a launcher, and one of them prints the page.
    assert user.output(job).count("Exact: all") == 1, user.output(job)


def test_torchrun_on_two_nodes_is_asked_while_it_runs(user: User) -> None:
    [port] = free_ports(1)
    body = (
        "srun ./record python -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d"
        f" --rdzv-id $SLURM_JOB_ID --rdzv-endpoint 127.0.0.1:{port} train.py"
    )
    settings = {"FAKE_GPU_COUNT": "2", "WAITS_IN_START": "0"}
    job = user.submit("elastic", body, "-N2 --ntasks-per-node=1", **settings)
    user.until_waiting(job, 4)
    assert f"memctl query elastic-{job}" in user.ask("jobs").err
    (user.waiting / "go").touch()
    user.until_over(job)
    answer = user.answer("query", f"slurm:{job}")
    assert sorted(rank["host"] for rank in answer["ranks"]) == ["node1", "node1", "node2", "node2"], answer["ranks"]
    assert answer["completeness"]["exact"] and user.output(job).count("Exact: all") == 1, user.output(job)


# The delay is shorter than the other node's run, about as long, or longer. So the daemon of that node may have ended.
@pytest.mark.parametrize("seconds", [5, 11, 40])
def test_a_node_that_comes_late(user: User, seconds: int) -> None:
    late = f"srun bash -c '[ $SLURM_PROCID = 1 ] || sleep {seconds}; exec ./record python train.py'"
    job = user.submit("late", late, "-N2 -n2")
    user.until_over(job)
    is_one_run(user, job, "late", {0: "node1", 1: "node2"})


def test_the_launcher_of_the_daemons_node_is_killed(user: User) -> None:
    job = user.submit("killed", "srun --kill-on-bad-exit=0 ./record python train.py", "-N2 -n2", WAITS_IN_START="0")
    user.until_waiting(job, 2)
    before = user.answer("query", f"killed-{job}")["completeness"]["events_stored"]
    [folder] = jobs_of(user)
    host = (folder / "host").read_text().split()[0]
    launchers = [
        path.parent for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if is_launcher(path.parent, job, host)
    ]
    launchers = [process for process in launchers if parent_of(process) not in {other.name for other in launchers}]
    assert len(launchers) == 1, launchers
    user.slurm("kill", "-KILL", launchers[0].name)
    (user.waiting / "go").touch()
    user.until(lambda: user.facts(job)["JobState"] not in ("RUNNING", "PENDING", "COMPLETING"), lambda: user.facts(job))
    answer = user.answer("query", f"killed-{job}")
    # The process records on without its launcher, as a second session.
    [listed] = json.loads(listed_in(user, folder))["jobs"]
    assert listed["events"] >= before + 100 and answer["completeness"]["exact"], (before, listed)
    others = [rank for rank in answer["ranks"] if rank["host"] != host]
    assert [rank["steps"] for rank in others] == [10], answer["ranks"]


def is_launcher(process: pathlib.Path, job: str, host: str) -> bool:
    """Whether a process is `memctl run` of a job's task on a node."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        environment = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    is_run = pathlib.PurePath(words[0].decode()).name == "memctl" and b"run" in words[1:2]
    return is_run and {f"SLURM_JOB_ID={job}".encode(), f"SLURMD_NODENAME={host}".encode()} <= set(environment)


def parent_of(process: pathlib.Path) -> str:
    """The parent's id. A launcher that starts a process has, for a moment, a child with the launcher's command line."""
    return (process / "stat").read_text().rpartition(")")[2].split()[1]


def listed_in(user: User, folder: pathlib.Path) -> str:
    """The JSON of `memctl jobs` about a folder. The number of events in it includes all sessions of a job."""
    run = user.ask("jobs", "--data-dir", str(folder), "--in-process", "-o", "json")
    assert run.code == 0, run
    return run.out
