"""Out-of-memory forecasts of live trainings: on a device that becomes full, and on one that nearly becomes full.

    RUN=$(tests/fakegpu/setup 2.11.0)
    $RUN python bench/live/ahead.py MEMCTL OUT [--draws N] [--drawn N] [--jobs N] [--step S] [--only NAME ...]

The environment has memctl-agent installed. The trainings are those of `leak_cases.py` that have steps and take memory,
N times each, and N of `drawn.py` that leak and as many that do not. Each first runs without memctl on smaller and
smaller devices, to find the smallest device (to a hundredth). A leaking training gets the smallest device for a drawn
part of its steps (50 to 95 %). Any other training gets the smallest device for all its steps plus 0.3 to 5 %. OUT keeps
these results. Then the training runs under `memctl run` with one daemon for all, a step every S seconds, while
`memctl query` runs twice a second. A run is *told* (forecast) if a finding that names the failing request was read
before the failing step began (or at any time, if none failed). Its request is *named* if the last such finding has the
line that failed according to `memctl oom`, and *one of three* if that line is among the alternatives of the finding.
(The line is the innermost of the user's own code; whether all frames match is counted separately.)
OUT/ahead.jsonl gets a row for each run; the last lines sum them up.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import traceml

from others import Daemon

MIB = 1 << 20
# Steps that must end before the one that fails.
STEPS_BEFORE = 40
# Names of the trainings of `drawn.py` that leak, and of those that do not.
DRAWN = ("drawn leak", "drawn close")
# The device for runs without a limit.
UNLIMITED_MIB = 81_920
# Servers have no steps, and one training has 4,000 of them in one epoch.
LEFT_OUT = ("server", "one epoch")


def made(name: str, leaks: bool = True) -> Any:
    """The training of that name, or the same training without its addition."""
    if name.startswith(DRAWN):
        import drawn

        plan = drawn.Plan.of(int(name.split()[-1]), name.startswith(DRAWN[0]))
        return drawn.Training(plan if leaks else dataclasses.replace(plan, cause="nothing"))
    import leak_cases

    return leak_cases.CASES[name][0]() if leaks else leak_cases.Clean()


class Enough(Exception):
    """Raised when all requested steps have run."""


def train(case: Any, pace: float, steps: int) -> list[int]:
    """Runs so many steps, prints the begin of each, and returns the peak allocated bytes of each."""
    import torch

    step, peaks = case.step, []
    said = pathlib.Path(os.environ["AHEAD_STEPS"])
    said.unlink(missing_ok=True)

    def paced(*arguments: Any) -> Any:
        peaks.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        if len(peaks) > steps:
            raise Enough
        with said.open("a") as file:
            print(time.time(), file=file)
        time.sleep(pace)
        return step(*arguments)

    case.step = paced
    torch.manual_seed(1)
    with contextlib.suppress(Enough):
        case.run()
        peaks.append(torch.cuda.max_memory_allocated())
    return peaks[1:]


class Trials:
    """Runs without pauses, each in a fork of a process that has imported torch and has not used the device."""

    def __init__(self, name: str, out: pathlib.Path) -> None:
        import torch  # noqa: F401

        self.name, self.out = name, out

    def run(self, mib: int, steps: int = sys.maxsize, leaks: bool = True) -> list[int] | None:
        """The peak allocated bytes of each step; None if a step fails."""
        if (child := os.fork()) == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.environ["FAKE_GPU_MIB"] = str(mib)
                self.out.write_text(json.dumps(train(made(self.name, leaks), 0.0, steps)))
                status = 0
            os._exit(status)
        return json.loads(self.out.read_text()) if os.waitpid(child, 0)[1] == 0 else None

    def least(self, steps: int, peak: int) -> int:
        """The smallest device, to a hundredth, that so many steps fit into, in MiB."""
        low, high = peak // MIB, peak // MIB + 1
        while self.run(high, steps) is None:
            low, high = high, high + 2 * max(high - low, high // 100, 1)
        while high - low > max(1, low // 100):
            middle = (low + high) // 2
            low, high = (low, middle) if self.run(middle, steps) else (middle, high)
        return high


def learn(name: str, draw: int, leaks: bool, out: pathlib.Path) -> None:
    """A device for one run, and whether the same training without its addition fits into it."""
    chance, trials = random.Random(f"{name} {draw}"), Trials(name, out.with_suffix(".peaks"))
    peaks = trials.run(UNLIMITED_MIB)
    assert peaks, f"{name} fails without a limit"
    steps = int(len(peaks) * chance.uniform(0.5, 0.95)) if leaks else len(peaks)
    least = trials.least(steps, max(peaks[:steps]))
    mib = least if leaks else -(-int(least * chance.uniform(1003, 1050)) // 1000)
    out.write_text(json.dumps({"mib": mib, "lives_without": trials.run(mib, leaks=False) is not None}))


def command(asked: argparse.Namespace, name: str, *flags: str) -> list[str]:
    return [sys.executable, __file__, asked.memctl, str(asked.out), "--one", name, "--step", str(asked.step), *flags]


def environment(steps: pathlib.Path, mib: int, **more: str) -> dict[str, str]:
    limits = {"AHEAD_STEPS": str(steps), "FAKE_GPU_MIB": str(mib), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **limits, **more, "PYTHONDONTWRITEBYTECODE": "1"}


def learned(asked: argparse.Namespace, run: tuple[str, int, bool]) -> dict[str, Any]:
    name, draw, leaks = run
    out = asked.out / f"{name}-{draw}.learned".replace(" ", "-")
    argv = command(asked, name, "--learn", str(draw), *(("--leaks",) if leaks else ()))
    around = environment(out.with_suffix(".trial"), UNLIMITED_MIB, AHEAD_OUT=str(out))
    if not out.exists():
        subprocess.run(argv, env=around, check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def watched(daemon: Daemon, job: str, going: subprocess.Popen[bytes]) -> list[Any]:
    """The forecasts during the run, and the time at which each was read."""
    forecasts = []
    while going.poll() is None:
        # (The job is unknown until its process has sent its hello.)
        with contextlib.suppress(AssertionError):
            ahead = [finding for finding in daemon.report(job)["findings"] if "steps_ahead" in finding["evidence"]]
            forecasts += [(time.time(), finding) for finding in ahead]
        time.sleep(0.5)
    return forecasts


def place(site: Any) -> str:
    """A line in the notation of findings."""
    line = "" if site["line"] is None else f":{site['line']}"
    return f"{site['function']} ({pathlib.PurePath(site['file']).name}{line})"


def instead(finding: Any) -> list[str]:
    """The other lines that a finding names."""
    others = finding["evidence"].get("or_instead", "")
    return [other.split(" in ", 1)[-1] for other in others.split("; ") if other]


def live(asked: argparse.Namespace, daemon: Daemon, run: tuple[str, int, bool], device: dict[str, Any]) -> Any:
    """One run under memctl."""
    name, draw, leaks = run
    job = f"{name}-{draw}".replace(" ", "-").replace(",", "")
    steps = asked.out / f"{job}.steps"
    argv = [asked.memctl, "run", "--patience", "60s", "--job", job, "--", *command(asked, name)]
    around = environment(steps, device["mib"], MEMCTL_DAEMON=daemon.url)
    with (asked.out / f"{job}.err").open("wb") as errors:
        going = subprocess.Popen(argv, env=around, stdout=subprocess.DEVNULL, stderr=errors)
        forecasts = watched(daemon, job, going)
    begun = [float(line) for line in steps.read_text().split()]
    row: dict[str, Any] = {"case": name, "draw": draw, "leaks": leaks, "steps": len(begun), **device}
    row["failed"] = going.returncode != 0
    if not row["failed"]:
        return {**row, "told": bool(forecasts), "first": forecasts[0][1]["title"] if forecasts else None}
    failures = json.loads(daemon.ask("oom", "--job", job, "-o", "json"))["failures"]
    if not failures:
        return {**row, "error": "it failed otherwise"}
    before = [(when, finding) for when, finding in forecasts if when < begun[-1]]
    row |= {"told": bool(before), "asked_bytes": failures[-1]["asked_bytes"], "site": failures[-1]["site"]}
    if before:
        last = before[-1][1]
        asked_bytes = -(-int(last["evidence"]["requested_bytes"]) // 512) * 512
        row |= {
            "seconds_before": round(begun[-1] - before[0][0], 1),
            "steps_before": sum(1 for at in begun if at > before[0][0]),
            "last": last["title"],
            "named": place(last["site"]) == place(row["site"]),
            "one_of_three": place(row["site"]) in [place(last["site"]), *instead(last)],
            "lines": 1 + len(instead(last)),
            "stack": last["site"] == row["site"],
            "and_bytes": last["site"] == row["site"] and asked_bytes == row["asked_bytes"],
        }
    return row


def wanted(asked: argparse.Namespace) -> list[tuple[str, int, bool]]:
    """Names, numbers of the draw, and whether they leak."""
    known = {name: leaks for name, leaks in traceml.cases().items() if not name.startswith(LEFT_OUT)}
    runs = [(name, draw, leaks) for draw in range(asked.draws) for name, leaks in known.items()]
    runs += [(f"{name} {at}", 0, name == DRAWN[0]) for at in range(asked.drawn) for name in DRAWN]
    return [run for run in runs if not asked.only or run[0] in asked.only]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memctl")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--drawn", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--step", type=float, default=0.2)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--one")
    parser.add_argument("--learn", type=int)
    parser.add_argument("--leaks", action="store_true")
    asked = parser.parse_args()
    if asked.one and asked.learn is not None:
        learn(asked.one, asked.learn, asked.leaks, pathlib.Path(os.environ["AHEAD_OUT"]))
        return
    if asked.one:
        train(made(asked.one), asked.step, sys.maxsize)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    runs = wanted(asked)
    shutil.rmtree(asked.out / "data", ignore_errors=True)
    daemon = Daemon(asked.memctl, asked.out)
    rows = []
    with contextlib.ExitStack() as stack:
        stack.callback(daemon.stop)
        several = stack.enter_context(ThreadPoolExecutor(asked.jobs))
        file = stack.enter_context((asked.out / "ahead.jsonl").open("w"))
        devices = list(several.map(lambda run: learned(asked, run), runs))
        for row in several.map(lambda run, device: live(asked, daemon, run, device), runs, devices):
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
            print(json.dumps(row), flush=True)
    summary(rows)


def summary(rows: list[Any]) -> None:
    failed = [row for row in rows if row["failed"] and "error" not in row and row["steps"] > STEPS_BEFORE]
    alone = [row for row in failed if row["lives_without"]]
    for words, some in ("that failed", failed), ("of these that live without", alone):
        hits = [row for row in some if row["told"]]
        counts = [f"{key} {sum(row[key] for row in hits)}" for key in ("named", "one_of_three", "stack", "and_bytes")]
        lines = sum(row["lines"] for row in hits) / max(1, len(hits))
        print(
            f"{len(some)} {words}: {len(hits)} told before the step that failed; {', '.join(counts)}; {lines:.1f} lines"
        )
    close = [row for row in rows if not row["failed"] and not row["leaks"]]
    print(f"{len(close)} that came close: {sum(row['told'] for row in close)} told")


if __name__ == "__main__":
    main()
