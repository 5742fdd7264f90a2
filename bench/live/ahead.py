"""Live trainings on a device that becomes full, and on one that nearly does: what the daemon foresees, and when.

    RUN=$(tests/fakegpu/setup 2.11.0)
    $RUN python bench/live/ahead.py MEMCTL OUT [--draws N] [--drawn N] [--jobs N] [--step S] [--only NAME ...]

The environment has memctl-agent installed. Each case of `leak_cases.py` that has steps and takes memory, N times, and
each of N trainings of `drawn.py` that leak and as many that do not, is run once without a limit, to learn what each of
its steps allocates at most (and what they would without the leak); then under `memctl run` with a daemon of its own, a
step every S seconds, on a fake device that a drawn part of its steps (50 to 95 %) fits into, if it leaks, or that is 1
to 5 % larger than all of them need, if not. Meanwhile `memctl query` is asked twice a second. A run is *told* when a
finding that names the request which will fail was read before the step began that failed (or at any time, if none
did); its request is *named* when the last such finding has the place and the bytes of the one that failed, which
`memctl oom` knows. OUT/ahead.jsonl gets a row for each; the last line sums them up.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import pathlib
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import traceml

from others import Daemon

MIB = 1 << 20
# Steps that have to have ended before the one that fails.
STEPS_BEFORE = 40
# How trainings of `drawn.py` are called that leak, and that do not.
DRAWN = ("drawn leak", "drawn close")
# A device that the trainings without a limit run on.
UNLIMITED_MIB = 81_920
# Servers have no steps, and one training has 4,000 of them in one epoch.
LEFT_OUT = ("server", "one epoch")


def made(name: str, leaks: bool = True) -> Any:
    """The training of that name, or the same one without what is added to it."""
    if name.startswith(DRAWN):
        import drawn

        plan = drawn.Plan.of(int(name.split()[-1]), name.startswith(DRAWN[0]))
        return drawn.Training(plan if leaks else dataclasses.replace(plan, cause="nothing"))
    import leak_cases

    return leak_cases.CASES[name][0]() if leaks else leak_cases.Clean()


def train(case: Any, pace: float) -> list[int]:
    """Runs it, says when each step begins, and returns what each one allocated at most."""
    import torch

    step, peaks = case.step, []
    said = pathlib.Path(os.environ["AHEAD_STEPS"])
    said.unlink(missing_ok=True)

    def paced(*arguments: Any) -> Any:
        peaks.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        with said.open("a") as file:
            print(time.time(), file=file)
        time.sleep(pace)
        return step(*arguments)

    case.step = paced
    torch.manual_seed(1)
    case.run()
    return [*peaks[1:], torch.cuda.max_memory_allocated()]


def learn(name: str) -> None:
    """Without a limit and without waiting, with what is added and without it."""
    course = {}
    for way, leaks in (("without", False), ("peaks", True)):
        course[way] = train(made(name, leaks), 0.0)
        gc.collect()
    pathlib.Path(os.environ["AHEAD_STEPS"]).write_text(json.dumps(course))


def command(asked: argparse.Namespace, name: str, *flags: str) -> list[str]:
    return [sys.executable, __file__, asked.memctl, str(asked.out), "--one", name, "--step", str(asked.step), *flags]


def environment(steps: pathlib.Path, mib: int, **more: str) -> dict[str, str]:
    limits = {"AHEAD_STEPS": str(steps), "FAKE_GPU_MIB": str(mib), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **limits, **more, "PYTHONDONTWRITEBYTECODE": "1"}


def course(asked: argparse.Namespace, name: str) -> dict[str, list[int]]:
    """What each step allocates at most, and would without what is added."""
    steps = asked.out / f"{name}.course".replace(" ", "-")
    argv = command(asked, name, "--course")
    subprocess.run(argv, env=environment(steps, UNLIMITED_MIB), check=True, stdout=subprocess.DEVNULL)
    return json.loads(steps.read_text())


def watched(daemon: Daemon, job: str, going: subprocess.Popen[bytes]) -> list[Any]:
    """What is foreseen while it runs, and when it was read."""
    told = []
    while going.poll() is None:
        # (Nobody knows the job before its process has said hello.)
        with contextlib.suppress(AssertionError):
            ahead = [finding for finding in daemon.report(job)["findings"] if "steps_ahead" in finding["evidence"]]
            told += [(time.time(), finding) for finding in ahead]
        time.sleep(0.5)
    return told


def live(asked: argparse.Namespace, daemon: Daemon, run: tuple[str, int, bool], course: dict[str, list[int]]) -> Any:
    """One run under a limit."""
    name, draw, leaks = run
    peaks = course["peaks"]
    chance = random.Random(f"{name} {draw}")
    upto = int(len(peaks) * chance.uniform(0.5, 0.95)) if leaks else len(peaks)
    share = 1.0 if leaks else chance.uniform(1.01, 1.05)
    mib = -(-int(max(peaks[:upto]) * share) // MIB)
    job = f"{name}-{draw}".replace(" ", "-").replace(",", "")
    steps = asked.out / f"{job}.steps"
    argv = [asked.memctl, "run", "--patience", "60s", "--job", job, "--", *command(asked, name)]
    around = environment(steps, mib, MEMCTL_DAEMON=daemon.url)
    with (asked.out / f"{job}.err").open("wb") as errors:
        going = subprocess.Popen(argv, env=around, stdout=subprocess.DEVNULL, stderr=errors)
        told = watched(daemon, job, going)
    begun = [float(line) for line in steps.read_text().split()]
    row: dict[str, Any] = {"case": name, "draw": draw, "leaks": leaks, "mib": mib, "steps": len(begun)}
    row["lives_without"] = max(course["without"]) <= mib * MIB
    row["failed"] = going.returncode != 0
    if not row["failed"]:
        return {**row, "told": bool(told), "first": told[0][1]["title"] if told else None}
    failures = json.loads(daemon.ask("oom", "--job", job, "-o", "json"))["failures"]
    if not failures:
        return {**row, "error": "it failed otherwise"}
    before = [(when, finding) for when, finding in told if when < begun[-1]]
    row |= {"told": bool(before), "asked_bytes": failures[-1]["asked_bytes"], "site": failures[-1]["site"]}
    if before:
        last = before[-1][1]
        asked_bytes = -(-int(last["evidence"]["requested_bytes"]) // 512) * 512
        row |= {
            "seconds_before": round(begun[-1] - before[0][0], 1),
            "steps_before": sum(1 for at in begun if at > before[0][0]),
            "last": last["title"],
            "named": last["site"] == row["site"],
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
    parser.add_argument("--course", action="store_true")
    asked = parser.parse_args()
    if asked.one:
        learn(asked.one) if asked.course else train(made(asked.one), asked.step)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    runs = wanted(asked)
    names = list(dict.fromkeys(name for name, _, _ in runs))
    daemon = Daemon(asked.memctl, asked.out)
    rows = []
    with contextlib.ExitStack() as stack:
        stack.callback(daemon.stop)
        several = stack.enter_context(ThreadPoolExecutor(asked.jobs))
        file = stack.enter_context((asked.out / "ahead.jsonl").open("w"))
        courses = dict(zip(names, several.map(lambda name: course(asked, name), names)))
        for row in several.map(lambda run: live(asked, daemon, run, courses[run[0]]), runs):
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
            print(json.dumps(row), flush=True)
    summary(rows)


def summary(rows: list[Any]) -> None:
    failed = [row for row in rows if row["failed"] and "error" not in row and row["steps"] > STEPS_BEFORE]
    told = [row for row in failed if row["told"]]
    close = [row for row in rows if not row["failed"]]
    print(
        f"of {len(failed)} that failed {len(told)} were told before the step that failed, the place named in "
        f"{sum(row['named'] for row in told)}, its bytes too in {sum(row['and_bytes'] for row in told)}; "
        f"of {len(close)} that came close {sum(row['told'] for row in close)} were told"
    )


if __name__ == "__main__":
    main()
