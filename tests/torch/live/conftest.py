"""Live tests: genuine torch on the fake GPU, the real `memctl run`, a real store, the real command line.

They run inside the venv of a torch version (`tests/fakegpu/setup`), where the wheel is installed. Every wait has a
limit.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Optional

import pytest

HERE = pathlib.Path(__file__).parent
TESTS = HERE.parents[1]
# A machine of two cores runs four ranks one after the other; the longest scenario has four million events.
LIMIT_S = 600

# The files that take longest, by the clock. They begin first: one that begins last leaves the other workers idle.
LONGEST = ("equality", "table", "ends", "pytest_plugin", "serving", "faults", "beside", "leak_to_the_end", "holders")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> int:
        name = item.path.stem.removeprefix("test_")
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=order)


class Run:
    """A command's exit code and output."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def reported(self, name: str) -> Any:
        """The last value that a script printed under this name (`small.tell`)."""
        lines = [line for line in self.err.splitlines() if line.startswith(f"TELL {name} ")]
        assert lines, (name, self)
        return json.loads(lines[-1].split(" ", 2)[2])

    def lines(self) -> list[str]:
        """memctl's own lines on stderr."""
        return [line for line in self.err.splitlines() if line.startswith("memctl:")]

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out[-6000:]}\n--- stderr\n{self.err[-6000:]}"


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a command that ran too long, and its children: first with SIGTERM, so that torchrun ends its workers."""
    for way in (signal.SIGTERM, signal.SIGKILL):
        # It leads its own session, so the group keeps its number until the last member ends.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, way)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)


def finish(command: list[str], environment: dict[str, str]) -> Run:
    """Runs a command to its end."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        end(process)
        out = err = "(somebody else still holds its output)"
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=20)
        raise AssertionError(f"no end after {LIMIT_S} s: {Run(process.returncode, out, err)}") from None
    return Run(process.returncode, out, err)


def until(done: Callable[[], bool], what: Callable[[], object]) -> None:
    """Waits until `done`; the error of a timeout shows `what`."""
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


class Going:
    """A running command. Its output goes to files, so it never blocks on a full pipe."""

    def __init__(self, argv: list[str], environment: dict[str, str], folder: pathlib.Path, pausing: bool) -> None:
        folder.mkdir(parents=True)
        self.pauses = folder / "pauses"
        self.pauses.mkdir()
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env=environment | ({"PAUSES": str(self.pauses)} if pausing else {}),
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Waits until `done`; fails if the command ends first."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < deadline, (what, self.now())
            assert self.process.poll() is None or done(), (what, self.now())
            time.sleep(0.005)

    def until_paused(self, *names: str) -> None:
        """Waits until the script is at these pauses."""
        for name in names:
            self.until((self.pauses / f"{name}.there").exists, f"pause {name}")

    def go_on(self, name: str) -> None:
        """Ends this pause of the script."""
        (self.pauses / f"{name}.go").touch()

    def now(self) -> Run:
        """Its output so far."""
        code = self.process.poll()
        return Run(
            -999 if code is None else code,
            self._out.read_text("utf-8", "replace"),
            self._err.read_text("utf-8", "replace"),
        )

    def until_said(self, words: str) -> Run:
        """Waits until it, or a process that outlives it, has printed this."""
        until(lambda: words in self.now().out + self.now().err, self.now)
        return self.now()

    def wait(self) -> Run:
        """Waits for its end."""
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            end(self.process)
            raise AssertionError(f"no end after {LIMIT_S} s: {self.now()}") from None
        return self.now()


class Memctl:
    """The command line over one data folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        found = shutil.which("memctl")
        assert found, "the wheel is not installed in this venv"
        self.command, self.folder = found, folder
        # (pytest-xdist's variables would name the roles of recorded processes; COLUMNS would set the width of pages.)
        foreign = ("MEMCTL_", "PYTEST_", "COLUMNS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environment = kept
        self.environment["MEMCTL_CACHE"] = os.environ.get("MEMCTL_CACHE", os.path.expanduser("~/.cache/memctl"))
        # No process outlives a test.
        self.environment["MEMCTL_SERVICE"] = "off"
        self.environment["FAKE_GPU_STATE"] = str(folder / "gpus")
        self.environment["TMPDIR"] = str(folder)
        # Spools that no daemon accepts stay there, and not in the user's home.
        self.environment["XDG_DATA_HOME"] = str(folder / "share")
        # Scripts import `small` from there; packages on the caller's path stay importable.
        path = os.environ.get("PYTHONPATH")
        self.environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *([path] if path else [])])
        # torch's warnings do not concern memctl, but where they are printed may differ with it.
        self.environment["PYTHONWARNINGS"] = "ignore"
        self._started = 0

    def argv(self, *arguments: str, settings: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """A command's arguments. They name the folder unless the settings name a daemon: a flag would override it."""
        place = [] if "MEMCTL_DAEMON" in settings else ["--data-dir", str(self.folder / "data")]
        return [self.command, *place, *arguments]

    def __call__(self, *arguments: str, **settings: str) -> Run:
        return finish(self.argv(*arguments, settings=settings), {**self.environment, **settings})

    def start(self, argv: list[str], settings: dict[str, str], *, pausing: bool = False) -> Going:
        """Starts any command in this environment; `pausing`: its scripts wait at their pauses."""
        self._started += 1
        folder = self.folder / f"going-{self._started}"
        return Going(argv, {**self.environment, **settings}, folder, pausing)

    def start_recorded(
        self, job: str, *command: str, settings: dict[str, str], pausing: bool = False, patience: str = "1s"
    ) -> Going:
        """Starts a command under the launcher, which at its end waits up to `patience` for an absent daemon."""
        argv = self.argv("run", "--patience", patience, "--job", job, "--", *command, settings=settings)
        return self.start(argv, settings, pausing=pausing)

    def answer(self, *arguments: str) -> Any:
        """A query's JSON response."""
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

    def events(
        self, job: str, rank: int = 0, device: Optional[int] = None, flags: tuple[str, ...] = ()
    ) -> list[tuple[str, int, int, int]]:
        """A rank's stored events, except snapshots: action, size, address (free bytes for an OOM), stream."""
        path = self.folder / f"{job}-{rank}.csv"
        run = self("export", "--job", job, "--rank", str(rank), "--format", "csv", "-f", str(path), *flags)
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
    """The index at which `whole` contains `part` without a gap, if it does."""
    if not part:
        return None
    head = part[:200]
    for start in range(len(whole) - len(part) + 1):
        if whole[start] == head[0] and whole[start : start + len(head)] == head:
            return start if whole[start : start + len(part)] == part else None
    return None


class Daemon:
    """A real daemon in a process of its own, on a port that stays the same when it is started again."""

    def __init__(self, memctl: Memctl, port: int = 0, name: str = "daemon") -> None:
        self._memctl, self._folder, self.port = memctl, memctl.folder / name, port
        self._process: Optional[subprocess.Popen[str]] = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it listens."""
        argv = [self._memctl.command, "daemon", "--data-dir", str(self._folder), "--listen", f"127.0.0.1:{self.port}"]
        self._process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self._memctl.environment
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "listens on" in line, line
        self.port = int(line.split("listens on ")[1].split()[0].rsplit(":", 1)[1])

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is printed."""
        assert self._process is not None and self._process.poll() is None, "it was dead already"
        self._process.kill()
        assert self._process.wait() == -9

    def stop(self) -> None:
        """Kills it if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def both(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """Two things at the same time."""
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(second)
        return first(), other.result()


class Plain:
    """Runs scripts without memctl, each only once for the same settings."""

    def __init__(self) -> None:
        self._known: dict[Any, Run] = {}
        self._lock = threading.Lock()

    def __call__(self, memctl: Memctl, script: pathlib.Path, *arguments: str, **settings: str) -> Run:
        key = (script.read_text(), arguments, tuple(sorted(settings.items())))
        with self._lock:
            if key not in self._known:
                # It has its own fake devices, because the recorded run goes on at the same time.
                environment = {**memctl.environment, "FAKE_GPU_STATE": "", **settings}
                self._known[key] = finish([sys.executable, str(script), *arguments], environment)
            return self._known[key]


def same(plain: Run, recorded: Run) -> None:
    """Training is unaffected: its output and its exit code are those of the same script without memctl."""
    assert plain.code == recorded.code or (plain.code < 0 and recorded.code == 128 - plain.code), (plain, recorded)
    assert plain.out == recorded.out, (plain, recorded)


@pytest.fixture(scope="session")
def plain() -> Plain:
    return Plain()


@pytest.fixture
def memctl(tmp_path: pathlib.Path) -> Iterator[Memctl]:
    yield Memctl(tmp_path)


@pytest.fixture
def script(tmp_path: pathlib.Path) -> Any:
    """Writes a script and returns its path."""

    def write(text: str, name: str = "train.py") -> pathlib.Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
