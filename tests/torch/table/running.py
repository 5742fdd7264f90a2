"""Runs jobs of the table under a real daemon and records the output of every command about them.

Nothing is assessed here: a record has the job's own counters, and all answers as they came. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from typing import Any, Iterator, Optional

from truth import Truth

JOBS = pathlib.Path(__file__).parent / "jobs"
# A job takes TABLE_SECONDS on an idle machine; on two busy cores it takes several times as long.
LIMIT_S = 600
ANSWER_LIMIT_S = 300
# The longest delay of an alert after the verdict.
ALERTS_LIMIT_S = 300
DEVICE_MIB = 4096
Record = dict[str, Any]


@dataclass(frozen=True)
class CommandResult:
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    def as_json(self) -> Record:
        """For a record: the parsed answer if it is JSON, otherwise the text."""
        with contextlib.suppress(ValueError):
            return {"code": self.code, "answer": json.loads(self.out)}
        return {"code": self.code, "text": self.out, "said": self.err[-2000:]}


class Place:
    """A daemon of the table's own, on loopback, over a scratch folder."""

    def __init__(self, memctl: str, folder: pathlib.Path, agent: Optional[pathlib.Path] = None) -> None:
        self.memctl, self.folder = memctl, folder
        foreign = ("MEMCTL_", "PYTEST_", "COLUMNS", "TABLE_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        path = [str(agent)] if agent else []
        path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        self.environment = kept | {
            "MEMCTL_CACHE": os.environ.get("MEMCTL_CACHE", os.path.expanduser("~/.cache/memctl")),
            "MEMCTL_SERVICE": "off",
            "XDG_DATA_HOME": str(folder / "share"),
            "TMPDIR": str(folder),
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
        }
        if "PYTHONPYCACHEPREFIX" not in kept:
            self.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self.url = self.http = ""

    @contextlib.contextmanager
    def serving(self) -> Iterator[Place]:
        """The daemon runs within this context."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # A job that has to compile its hook first is recorded from then on: on busy cores its last seconds alone.
        build = [sys.executable, "-m", "memctl_agent", "build"]
        subprocess.run(build, env=self.environment, timeout=ANSWER_LIMIT_S, check=True, capture_output=True)
        argv = [self.memctl, "daemon", "--data-dir", str(self.folder / "data")]
        argv += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
        with (self.folder / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment)
        try:
            assert daemon.stdout is not None
            line = daemon.stdout.readline()
            assert "listens on" in line, (line, (self.folder / "daemon.log").read_text())
            addresses = [word.rstrip(",") for word in line.split() if word.startswith("http://")]
            self.url, self.http = addresses
            yield self
        finally:
            daemon.kill()
            daemon.wait()

    def ask(self, *arguments: str) -> CommandResult:
        """Runs a command against the daemon."""
        argv = [self.memctl, "--daemon", self.url, *arguments]
        done = subprocess.run(
            argv, capture_output=True, text=True, env=self.environment, timeout=ANSWER_LIMIT_S, stdin=subprocess.DEVNULL
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def fetch(self, path: str) -> Any:
        """The response that the page gets."""
        with urllib.request.urlopen(self.http + path, timeout=ANSWER_LIMIT_S) as answer:
            return json.load(answer)

    def start(self, truth: Truth, seconds: float) -> subprocess.Popen[bytes]:
        """Starts a job under `memctl run`; what it prints goes to files."""
        folder = self.folder / truth.name
        folder.mkdir()
        argv = [self.memctl, "run", "--daemon", self.url, "--job", truth.name, "--"]
        argv += [sys.executable, str(JOBS / f"{truth.program}.py"), truth.name]
        environment = self.environment | {
            "TABLE_SECONDS": str(seconds),
            "FAKE_GPU_MIB": str(DEVICE_MIB),
            "FAKE_GPU_COUNT": "1",
            "FAKE_GPU_STATE": str(folder / "gpu"),
        }
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )

    def counters(self, truth: Truth) -> list[Record]:
        """What the job has printed so far."""
        lines = (self.folder / truth.name / "out").read_text("utf-8", "replace").splitlines()
        found = []
        for line in lines:
            if line.startswith('{"process"'):
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found


def recorded(place: Place, truth: Truth, seconds: float, asked_after: float) -> Record:
    """Runs a job to its end and queries everything: once `asked_after` seconds after its first step, and at its end."""
    process = place.start(truth, seconds)
    record: Record = {"name": truth.name, "seconds": seconds}
    try:
        deadline = time.monotonic() + LIMIT_S
        record["live"] = None
        while process.poll() is None and time.monotonic() < deadline:
            counters = place.counters(truth)
            if record["live"] is None and counters and time.time() >= counters[0]["at"] + asked_after:
                record["live"] = live(place, truth)
            time.sleep(0.1)
        record["code"] = process.poll()
    finally:
        ended(process)
    folder = place.folder / truth.name
    record["counters"] = place.counters(truth)
    record["err"] = (folder / "err").read_text("utf-8", "replace")[-6000:]
    record["end"] = at_the_end(place, truth)
    shutil.rmtree(folder)
    return record


def ended(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its children if it still runs: first with SIGTERM, then with SIGKILL."""
    for way in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, way)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)


def live(place: Place, truth: Truth) -> Record:
    """The verdict while it runs."""
    asked_at = time.time()
    answer = place.ask("query", "--job", truth.name, "-o", "json").as_json()
    page = place.ask("query", "--job", truth.name).out
    return {"at": asked_at, "took": time.time() - asked_at, "query": answer, "page": page}


def at_the_end(place: Place, truth: Truth) -> Record:
    """Every command that gives a verdict, as JSON, as a page, and as an exit code."""
    job = ("--job", truth.name)
    answers: Record = {"at": time.time()}
    for verb in ("query", "diagnose", "leaks"):
        answers[verb] = place.ask(verb, *job, "-o", "json").as_json()
        page = place.ask(verb, *job)
        answers[f"{verb}_page"] = {"code": page.code, "text": page.out, "said": page.err[-2000:]}
    listed = place.ask("jobs", "-o", "json").as_json()
    answers["jobs"] = next((one for one in listed.get("answer", {}).get("jobs", []) if one["id"] == truth.name), None)
    answers["assert"] = place.ask("assert", *job, "no-leak", "-o", "json").as_json()
    for level in ("growing", "warning"):
        answers[f"fail_on_{level}"] = place.ask("query", *job, "--fail-on", level).code
    answers["alerts"] = _settled_alerts(place, truth, answers["query"].get("answer", {}).get("verdict") or {})
    answers["http"] = place.fetch(f"/api/v1/jobs/{truth.name}/query")
    return answers


def _settled_alerts(place: Place, truth: Truth, verdict: Record) -> list[Record]:
    """The alerts of an ended job, once they agree with its verdict: rules are evaluated every second or two."""
    is_leak = verdict.get("kind") == "growing" and verdict.get("cause") == "known"
    until = time.monotonic() + ALERTS_LIMIT_S
    while True:
        answer = place.ask("alerts", "-o", "json").as_json().get("answer", {})
        alerts = [one for one in answer.get("alerts", []) if one["job"] == truth.name]
        fires = any(one["state"] == "firing" for one in alerts)
        if fires == is_leak or time.monotonic() > until:
            return alerts
        time.sleep(1)
