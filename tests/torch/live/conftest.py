"""Live tests: genuine torch on the fake GPU, the real `memctl run`, a real store, the real command line.

They run inside the venv of a torch version (`tests/fakegpu/setup`), where the wheel is installed. Every wait has a limit.
"""

from __future__ import annotations

import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Optional

import pytest

HERE = pathlib.Path(__file__).parent
TESTS = HERE.parents[1]
# A machine of two cores runs four ranks one after the other; the longest scenario has four million events.
LIMIT_S = 240


class Run:
    """What a command left behind."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out[-6000:]}\n--- stderr\n{self.err[-6000:]}"


class Memctl:
    """The command line over one data folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        found = shutil.which("memctl")
        assert found, "the wheel is not installed in this venv"
        self.command, self.folder = found, folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMCTL_")}
        self.environment["MEMCTL_CACHE"] = os.environ.get("MEMCTL_CACHE", os.path.expanduser("~/.cache/memctl"))
        self.environment["FAKE_GPU_STATE"] = str(folder / "gpus")
        self.environment["TMPDIR"] = str(folder)

    def argv(self, *arguments: str) -> list[str]:
        return [self.command, "--data-dir", str(self.folder / "data"), *arguments]

    def __call__(self, *arguments: str, **settings: str) -> Run:
        done = subprocess.run(
            self.argv(*arguments),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**self.environment, **settings},
            check=False,
        )
        return Run(done)

    def answer(self, *arguments: str) -> Any:
        """A question's JSON."""
        run = self(*arguments, "-o", "json")
        assert run.code == 0, run
        return json.loads(run.out)

    def record(self, job: str, *command: str, **settings: str) -> Run:
        """Runs a command under the launcher."""
        return self("run", "--job", job, "--", *command, **settings)

    def record_ranks(self, job: str, ranks: int, script: pathlib.Path, *arguments: str, **settings: str) -> Run:
        """Runs a script under torchrun under the launcher."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return self.record(job, *torchrun, str(script), *arguments, FAKE_GPU_COUNT=str(ranks), **settings)

    def events(self, job: str, rank: int = 0, device: Optional[int] = None) -> list[tuple[str, int, int, int]]:
        """A rank's stored events but snapshots: action, size, address (free bytes for an OOM), stream."""
        path = self.folder / f"{job}-{rank}.csv"
        run = self("export", "--job", job, "--rank", str(rank), "--format", "csv", "-f", str(path))
        assert run.code == 0, run
        with path.open() as lines:
            return [event_of(row) for row in csv.DictReader(lines) if is_asked(row, device)]


def is_asked(row: dict[str, str], device: Optional[int]) -> bool:
    return row["action"] != "snapshot" and (device is None or int(row["device"]) == device)


def event_of(row: dict[str, str]) -> tuple[str, int, int, int]:
    address = row["address"] or row["device_free_bytes"] or "0"
    return row["action"], int(row["size_bytes"]), int(address, 0), int(row["stream"], 0)


def own_trace(trace: list[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
    """PyTorch's own trace of a device in the same form."""
    events = []
    for entry in trace:
        if entry["action"] != "snapshot":
            address = entry["addr"] if "addr" in entry else entry["device_free"]
            events.append((entry["action"], entry["size"], address, entry["stream"]))
    return events


def place_of(part: list[Any], whole: list[Any]) -> Optional[int]:
    """Where `part` lies in `whole` without a gap, if it does."""
    if not part:
        return None
    head = part[:200]
    for start in range(len(whole) - len(part) + 1):
        if whole[start] == head[0] and whole[start : start + len(head)] == head:
            return start if whole[start : start + len(part)] == part else None
    return None


@pytest.fixture
def memctl(tmp_path: pathlib.Path) -> Iterator[Memctl]:
    yield Memctl(tmp_path)


@pytest.fixture
def script(tmp_path: pathlib.Path) -> Any:
    """Writes a script and gives its path."""

    def write(text: str, name: str = "train.py") -> pathlib.Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
