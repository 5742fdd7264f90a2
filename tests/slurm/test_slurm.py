"""memctl under a real Slurm: what it records, how it names and labels it, and how the ends of jobs look.

Each node is a slurmd of its own on this machine (`cluster.py`). The tests need root, as slurmd does.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import Cluster, free_ports
from submitted import OVER, User
from unpacked import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it runs")
LABELS = {"slurm.account": "vision", "slurm.partition": "gpu", "slurm.cluster": "memctl", "slurm.user": "root"}


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
    try:
        yield made
    finally:
        cluster.command("scancel", "--full", "--user=root")
        made.daemon.stop()


def has_labels(job: dict[str, Any], slurm_job: str, name: str, **more: str) -> None:
    wanted = {**LABELS, "slurm.job": slurm_job, "slurm.name": name}
    wanted.update({key.replace("_", "."): value for key, value in more.items()})
    assert {key: value for key, value in job["labels"].items() if key != "slurm.job_id"} == wanted, job


def selects(user: User, selection: str, name: str, *flags: str) -> None:
    """The selection means the same as this name, for every command."""
    for command in ("query", "sites", "timeline"):
        by_selection, by_name = (user.answer(command, job, *flags)["job"] for job in (selection, name))
        assert by_selection == by_name, (command, by_selection, by_name)


def stopped_by_sigterm(job: dict[str, Any], answer: dict[str, Any]) -> None:
    """A process was asked to end: this is said, and what it recorded before is complete."""
    assert job["state"] == "failed" and answer["completeness"]["exact"], (job, answer["completeness"])
    for rank in answer["ranks"]:
        assert "SIGTERM" in rank["failure"] and rank["epochs"] == 1 and rank["steps"] == 5, rank
        assert rank["events"] > 100 and rank["allocated_bytes"] > 0, rank
    assert "SIGTERM" in answer["verdict"]["sentence"], answer["verdict"]


def test_a_batch_script(user: User) -> None:
    job = user.submit("gpt", "memctl run -- python train.py")
    user.until_over(job)
    recorded = user.recorded()
    assert list(recorded) == [f"gpt-{job}#1.0"], recorded
    found = recorded[f"gpt-{job}#1.0"]
    assert (found["state"], found["ranks"], found["processes"]) == ("finished", 1, 1), found
    assert f"job gpt-{job}: {found['events']} events" in user.output(job), user.output(job)
    answer = user.answer("query", f"gpt-{job}")
    assert answer["completeness"]["exact"] and answer["ranks"][0]["steps"] == 10, answer
    # A batch script is no step that a user can start.
    has_labels(found, job, "gpt")
    selects(user, f"slurm:{job}", f"gpt-{job}")
    unknown = user.ask("query", "slurm:4000000")
    assert unknown.code == 4 and "slurm:4000000" in unknown.err, unknown


def test_a_step_of_four_nodes_is_one_run(user: User) -> None:
    job = user.submit("ddp", "srun ./record python train.py", "-N4 -n4")
    user.until_over(job)
    recorded = user.recorded()
    assert list(recorded) == [f"ddp-{job}#1.0"], recorded
    found = recorded[f"ddp-{job}#1.0"]
    assert (found["state"], found["ranks"], found["processes"], found["world_size"]) == ("finished", 4, 4, 4), found
    answer = user.answer("query", f"ddp-{job}")
    hosts = {rank["rank"]: rank["host"] for rank in answer["ranks"]}
    assert hosts == {0: "node1", 1: "node2", 2: "node3", 3: "node4"}, hosts
    assert answer["completeness"]["exact"] and {rank["steps"] for rank in answer["ranks"]} == {10}, answer
    # Each node has a launcher, but a job has one last line.
    assert user.output(job).count("memctl: job ") == 1, user.output(job)
    has_labels(found, job, "ddp", slurm_step="0")
    for selection in (f"slurm:{job}", f"slurm:{job}.0"):
        selects(user, selection, f"ddp-{job}")


TORCHRUN = """\
srun ./record python -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \\
    --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint 127.0.0.1:{port} train.py
"""


def test_torchrun_on_two_nodes_is_one_run(user: User) -> None:
    [port] = free_ports(1)
    job = user.submit("elastic", TORCHRUN.format(port=port), "-N2 --ntasks-per-node=1", FAKE_GPU_COUNT="2")
    user.until_over(job)
    recorded = user.recorded()
    assert list(recorded) == [f"elastic-{job}#1.0"], recorded
    found = recorded[f"elastic-{job}#1.0"]
    assert (found["state"], found["ranks"], found["world_size"]) == ("finished", 4, 4), found
    answer = user.answer("query", f"elastic-{job}")
    hosts = sorted(rank["host"] for rank in answer["ranks"])
    assert hosts == ["node1", "node1", "node2", "node2"] and answer["completeness"]["exact"], answer
    has_labels(found, job, "elastic", slurm_step="0")
    selects(user, f"slurm:{job}", f"elastic-{job}")


def test_a_heterogeneous_job_is_one_run(user: User) -> None:
    flags = "-N1 -n1\n#SBATCH hetjob\n#SBATCH --account=vision -N2 -n2"
    job = user.submit("het", "srun --het-group=0,1 ./record python train.py", flags)
    user.until_over(job)
    recorded = user.recorded()
    assert list(recorded) == [f"het-{job}#1.0"], recorded
    found = recorded[f"het-{job}#1.0"]
    assert (found["state"], found["ranks"], found["world_size"]) == ("finished", 3, 3), found
    hosts = [rank["host"] for rank in user.answer("query", f"het-{job}")["ranks"]]
    assert hosts == ["node1", "node2", "node3"], hosts
    has_labels(found, job, "het", slurm_step="0")


def test_each_task_of_an_array_is_a_job(user: User) -> None:
    array = user.submit("sweep", "memctl run -- python train.py", "--array=0-2")
    tasks = [f"{array}_{number}" for number in range(3)]
    user.until_over(*tasks)
    recorded = user.recorded()
    assert set(recorded) == {f"sweep-{task}#1.0" for task in tasks}, recorded
    for task in tasks:
        found = recorded[f"sweep-{task}#1.0"]
        assert (found["state"], found["ranks"]) == ("finished", 1), found
        has_labels(found, task, "sweep")
        selects(user, f"slurm:{task}", f"sweep-{task}")
        selects(user, f"slurm:{found['labels']['slurm.job_id']}", f"sweep-{task}")
    # Slurm gives the array's own number to the last task.
    selects(user, f"slurm:{array}", f"sweep-{tasks[-1]}")


def test_two_steps_at_once_are_two_jobs(user: User) -> None:
    step = "srun -N1 -n1 --exact ./record python train.py &\n"
    job = user.submit("two", f"{step}{step}wait", "-N2 -n2")
    user.until_over(job)
    recorded = user.recorded()
    assert set(recorded) == {f"two-{job}#1.0", f"two-{job}.1#1.0"}, recorded
    for step, name in (("0", f"two-{job}"), ("1", f"two-{job}.1")):
        found = recorded[f"{name}#1.0"]
        assert (found["state"], found["ranks"], found["world_size"]) == ("finished", 1, 1), found
        has_labels(found, job, "two", slurm_step=step)
        selects(user, f"slurm:{job}.{step}", name)
    selects(user, f"slurm:{job}", user.answer("jobs")["jobs"][0]["name"])


def test_programs_in_a_shell_of_a_step_are_runs(user: User) -> None:
    shell = "./record python train.py; ./record python train.py"
    user.slurm("srun", "-n1", "--job-name=shell", "--account=vision", f"--chdir={user.folder}", "sh", "-c", shell)
    recorded = user.recorded()
    [name] = {job["name"] for job in recorded.values()}
    assert set(recorded) == {f"{name}#1.0", f"{name}#2.0"} and name.startswith("shell-"), recorded
    assert {job["state"] for job in recorded.values()} == {"finished"}, recorded


def test_a_requeued_job_is_an_attempt(user: User) -> None:
    job = user.submit("again", "memctl run -- python train.py", WAITS_IN_START="0")
    user.until_waiting(job)
    user.slurm("scontrol", "requeue", job)
    user.until_over(job)
    recorded = user.recorded()
    # 1000 for the first restart by Slurm: torchrun's restarts are counted within it.
    assert set(recorded) == {f"again-{job}#1.0", f"again-{job}#1.1000"}, recorded
    first, second = recorded[f"again-{job}#1.0"], recorded[f"again-{job}#1.1000"]
    assert (second["state"], second["attempts"], second["events"] > first["events"]) == ("finished", 2, True), second
    stopped_by_sigterm(first, user.answer("query", f"again-{job}", "--attempt", "0"))
    answer = user.answer("query", f"again-{job}")
    assert answer["job"]["attempt"] == 1000 and answer["ranks"][0]["steps"] == 10, answer
    for found in (first, second):
        has_labels(found, job, "again")
    selects(user, f"slurm:{job}", f"again-{job}")
    selects(user, f"slurm:{job}", f"again-{job}", "--attempt", "0")


def test_a_suspended_job_goes_on(user: User) -> None:
    job = user.submit("rests", "srun ./record python train.py", "-n1", WAITS_IN_START="0")
    user.until_waiting(job)
    user.slurm("scontrol", "suspend", job)
    # Its processes are stopped. Such a stream looks like one whose host is gone.
    user.until(lambda: user.recorded()[f"rests-{job}#1.0"]["state"] == "lost", user.recorded)
    user.slurm("scontrol", "resume", job)
    user.until(lambda: user.recorded()[f"rests-{job}#1.0"]["state"] == "running", user.recorded)
    (user.waiting / "go").touch()
    user.until_over(job)
    answer = user.answer("query", f"rests-{job}")
    assert answer["job"]["state"] == "finished" and answer["completeness"]["exact"], answer
    assert answer["ranks"][0]["steps"] == 10 and list(user.recorded()) == [f"rests-{job}#1.0"], answer


@pytest.mark.parametrize("way", ["a step", "a batch script"])
def test_a_cancelled_job_keeps_what_it_recorded(user: User, way: str) -> None:
    step = way == "a step"
    ranks = 2 if step else 1
    command = "srun ./record python train.py" if step else "memctl run -- python train.py"
    job = user.submit("gone", command, f"-N{ranks} -n{ranks}", WAITS_IN_START="0")
    user.until_waiting(job, ranks)
    user.slurm("scancel", job)
    assert user.until_state(job, "CANCELLED") == "CANCELLED"
    user.until(lambda: user.recorded()[f"gone-{job}#1.0"]["state"] != "running", user.recorded)
    stopped_by_sigterm(user.recorded()[f"gone-{job}#1.0"], user.answer("query", f"gone-{job}"))
    selects(user, f"slurm:{job}", f"gone-{job}")


def test_a_step_that_is_killed_is_lost(user: User) -> None:
    job = user.submit("killed", "srun ./record python train.py", "-n1", WAITS_IN_START="0")
    user.until_waiting(job)
    user.slurm("scancel", "--signal=KILL", f"{job}.0")
    assert user.until_state(job, *OVER) == "FAILED"
    # The launcher died with its program. For half a minute, the daemon expects its stream to come back.
    user.until(lambda: user.recorded()[f"killed-{job}#1.0"]["state"] == "lost", user.recorded)
    answer = user.answer("query", f"killed-{job}")
    [rank] = answer["ranks"]
    assert rank["state"] == "lost" and rank["steps"] == 5 and rank["epochs"] == 1 and rank["events"] > 100, rank
    assert not answer["completeness"]["exact"], answer["completeness"]


def test_the_time_limit_ends_a_job(user: User) -> None:
    job = user.submit("limit", "memctl run -- python train.py", "--time=1", WAITS_IN_START="0")
    user.until_waiting(job)
    # The limit has whole minutes. This one has passed; the controller looks every half minute.
    user.slurm("scontrol", "update", f"jobid={job}", "endtime=now+1")
    assert user.until_state(job, "TIMEOUT") == "TIMEOUT"
    user.until(lambda: user.recorded()[f"limit-{job}#1.0"]["state"] != "running", user.recorded)
    stopped_by_sigterm(user.recorded()[f"limit-{job}#1.0"], user.answer("query", f"limit-{job}"))
    has_labels(user.recorded()[f"limit-{job}#1.0"], job, "limit")
    assert "time limit" in json.dumps(user.answer("diagnose", f"limit-{job}")), "the possible causes have it"


def test_a_node_that_fails_takes_its_rank_with_it(tmp_path: pathlib.Path) -> None:
    cluster = Cluster(tmp_path / "c", 5)
    (tmp_path / "u").mkdir()
    user = User(tmp_path / "u", cluster)
    try:
        cluster.start()
        job = user.submit("fails", "srun ./record python train.py", "-N4 -n4 --requeue", WAITS_IN_START="0")
        user.until_waiting(job, 4)
        cluster.kill_node("node4")
        user.slurm("scontrol", "update", "nodename=node4", "state=down", "reason=power")
        # Slurm ends the other tasks and starts the job again, on the fifth node in place of the fourth.
        user.until(lambda: user.recorded()[f"fails-{job}#1.0"]["state"] == "failed", user.recorded)
        first = user.answer("query", f"fails-{job}", "--attempt", "0")
        ends = {rank["host"]: (rank["state"], rank["failure"], rank["steps"]) for rank in first["ranks"]}
        killed = ("failed", "killed by signal 15 (SIGTERM)", 5)
        assert ends == {"node1": killed, "node2": killed, "node3": killed, "node4": ("lost", None, 5)}, ends
        user.until_over(job)
        recorded = user.recorded()
        assert set(recorded) == {f"fails-{job}#1.0", f"fails-{job}#1.1000"}, recorded
        again = user.answer("query", f"fails-{job}")
        hosts = [rank["host"] for rank in again["ranks"]]
        assert again["job"]["state"] == "finished" and hosts == ["node1", "node2", "node3", "node5"], again["ranks"]
        has_labels(recorded[f"fails-{job}#1.1000"], job, "fails", slurm_step="0")
        selects(user, f"slurm:{job}", f"fails-{job}")
    finally:
        user.daemon.stop()
        cluster.stop()
