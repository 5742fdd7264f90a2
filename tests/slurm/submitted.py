"""A user of a test's cluster: submits scripts, waits for states of jobs, and asks a memctl daemon about them."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

LIVE = pathlib.Path(__file__).parents[1] / "torch" / "live"
sys.path.insert(0, str(LIVE))

from cluster import Cluster  # noqa: E402
from conftest import LIMIT_S, Daemon, Memctl, Run, finish  # noqa: E402

# Two epochs of five steps. A test may let it wait after the first one, in the given start of its job: a requeued job
# then goes through to its end.
TRAIN = """
import os, pathlib, time, torch, small, memctl_agent
training = small.Training()
for epoch in range(2):
    with memctl_agent.epoch(epoch):
        training.steps(5)
    if epoch == 0 and os.environ.get("WAITS_IN_START") == os.environ.get("SLURM_RESTART_COUNT", "0"):
        mine = os.environ["SLURM_JOB_ID"] + "-" + os.environ.get("RANK", os.environ["SLURM_PROCID"])
        pathlib.Path(os.environ["WAITING"], mine).touch()
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not pathlib.Path(os.environ["WAITING"], "go").exists():
            time.sleep(0.05)
training.report()
"""
# The nodes are one machine, so each gets simulated devices of its own.
RECORD = """\
#!/bin/sh
export FAKE_GPU_STATE="$FAKE_GPU_STATE-$SLURMD_NODENAME"
exec memctl run -- "$@"
"""
HEAD = """\
#!/bin/bash
#SBATCH --job-name={name} --account=vision --output={folder}/%j.out --open-mode=append {flags}
cd {folder}
{body}
"""
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class User:
    """A user with a folder, whose jobs send to a daemon of the test."""

    def __init__(self, folder: pathlib.Path, cluster: Cluster) -> None:
        self.folder, self.cluster, self.memctl = folder, cluster, Memctl(folder)
        self.daemon = Daemon(self.memctl)
        self.waiting = folder / "waiting"
        self.waiting.mkdir()
        (folder / "train.py").write_text(TRAIN)
        (folder / "record").write_text(RECORD)
        (folder / "record").chmod(0o755)
        self.environment = {
            **self.memctl.environment,
            **cluster.environment(),
            "MEMCTL_DAEMON": self.daemon.url,
            "WAITING": str(self.waiting),
        }

    def slurm(self, *argv: str, **settings: str) -> str:
        """What one of Slurm's commands prints."""
        run = finish(list(argv), {**self.environment, **settings})
        assert run.code == 0, (argv, run)
        return run.out

    def submit(self, name: str, body: str, flags: str = "", **settings: str) -> str:
        """Submits a batch script. Returns the job's id."""
        script = self.folder / f"{name}.sh"
        script.write_text(HEAD.format(name=name, folder=self.folder, flags=flags, body=body))
        return self.slurm("sbatch", "--parsable", str(script), **settings).strip()

    def facts(self, job: str) -> dict[str, str]:
        """What Slurm says about a job, or about a task of an array."""
        words = self.slurm("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def until(self, done: Callable[[], bool], what: Callable[[], object]) -> None:
        """Waits until `done`, without taking the processors from the jobs."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < deadline, (what(), self.outputs(), self.cluster.logs())
            time.sleep(0.2)

    def until_state(self, job: str, *states: str) -> str:
        """Waits until Slurm has a job in one of these states. Returns the state."""
        self.until(lambda: self.facts(job)["JobState"] in states, lambda: (states, self.facts(job)))
        return self.facts(job)["JobState"]

    def until_over(self, *jobs: str) -> None:
        """Waits until these jobs have ended, and succeeded."""
        for job in jobs:
            assert self.until_state(job, *OVER) == "COMPLETED", (self.facts(job), self.outputs())

    def until_waiting(self, job: str, ranks: int = 1) -> None:
        """Waits until all ranks of a job wait after their first epoch, and the daemon has the events of this epoch."""

        def there() -> bool:
            return len(list(self.waiting.glob(f"{job}-*"))) == ranks

        def stored() -> bool:
            name = f"{self.facts(job)['JobName']}-{job}"
            # Marks may arrive before the events.
            return all(rank["epochs"] == 1 and rank["events"] > 100 for rank in self.answer("query", name)["ranks"])

        self.until(lambda: there() and stored(), lambda: (job, self.facts(job)))

    def output(self, job: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"{job}.out").read_text("utf-8", "replace")
        return ""

    def outputs(self) -> dict[str, str]:
        return {path.name: path.read_text("utf-8", "replace")[-3000:] for path in self.folder.glob("*.out")}

    def ask(self, *words: str) -> Run:
        """Runs a command of memctl that asks the daemon."""
        return finish([self.memctl.command, *words], self.environment)

    def answer(self, *words: str) -> Any:
        """A query's JSON response."""
        run = self.ask(*words, "-o", "json")
        assert run.code == 0, (run, self.outputs())
        return json.loads(run.out)

    def recorded(self) -> dict[str, Any]:
        """All attempts of all runs in the store, by name, run and attempt."""
        jobs = self.answer("jobs")["jobs"]
        return {f"{job['name']}#{job['run']}.{job['attempt']}": job for job in jobs}
