"""The cost of a training over 10³ to 10⁶ live blocks: plain, with PyTorch's recorder and under `memctl run`. Also
checks that all events are stored.

    python blocks.py [--blocks 1000 10000 100000 1000000] [--steps 2000] [--rounds 5] [--model tiny|transformer]
                     [--memctl PATH] [-o result.json]

The given number of small tensors stay live. Every step trains a model, makes 65 tensors and drops 64 of them. The
`tiny` model does almost nothing else, so a step is 256 events in a millisecond. The `transformer` has 170 million
parameters and gives a real GPU 10 to 20 ms of work per step. The training's time is the processor time of its main
thread, which on the fake GPU is all of it. With the transformer it is also the wall time until the GPU is done.
memctl's time is that of the launcher's worker, from idle to idle. Beside it is the time of the whole launcher, where
the judge takes at most a twentieth of a core. The ways alternate, each in a separate process, in a new order every
round: `plain`, `again` (plain once more, which shows the resolution of the method), `recorder` (PyTorch's history with
Python stacks, 100,000 entries) and `memctl`. Every recorded run is checked afterwards: all events stored, none dropped,
the job finished.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT_S = 900
KEPT_OF = 65
WORKER = "memctl-batch"
WAYS = ("plain", "again", "recorder", "memctl")


def on_core(pid: int) -> tuple[float, float]:
    """Seconds on a core: the launcher's worker, and all threads of the launcher that still run."""
    worker = whole = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
        whole += seconds
        worker += seconds if (task / "comm").read_text().strip() == WORKER else 0.0
    return worker, whole


def settled(pid: int) -> tuple[float, float]:
    """The same, once the worker is almost idle, because work for the initial blocks belongs to no step."""
    deadline, before = time.monotonic() + LIMIT_S / 4, on_core(pid)
    while time.monotonic() < deadline:
        time.sleep(1)
        now = on_core(pid)
        if now[0] - before[0] < 0.01:
            return now
        before = now
    sys.exit("the worker never came to rest")


def training_of(name: str) -> tuple[Any, Any]:
    """A model and a batch of it."""
    import torch

    torch.manual_seed(0)
    if name == "tiny":
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
        return model.to("cuda"), torch.randn(8, 32, device="cuda")
    layer = torch.nn.TransformerEncoderLayer(1536, 12, 6144, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to("cuda", torch.bfloat16)
    return model, torch.randn(16, 512, 1536, device="cuda", dtype=torch.bfloat16)


def train(blocks: int, steps: int, way: str, name: str) -> None:
    """The training; prints its figures as one line of JSON."""
    import torch

    if way == "recorder":
        torch.cuda.memory._record_memory_history(context="all", stacks="python", max_entries=100_000)
    model, batch = training_of(name)
    optimizer = torch.optim.AdamW(model.parameters())
    kept = [torch.empty(512 + number % 4 * 512, dtype=torch.uint8, device="cuda") for number in range(blocks)]

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        made = [torch.empty(2048, dtype=torch.uint8, device="cuda") for _ in range(KEPT_OF)]
        kept.append(made[0])

    for _ in range(20):
        step()
    launcher = os.getppid()
    if way == "memctl":
        theirs = settled(launcher)
    else:
        # As long as the worker takes to become idle.
        theirs = (0.0, 0.0)
        time.sleep(2)
    torch.cuda.synchronize()
    clock, begun = time.monotonic_ns(), time.thread_time_ns()
    for _ in range(steps):
        step()
    took = time.thread_time_ns() - begun
    torch.cuda.synchronize()
    # Events that are still in the ring belong to these steps.
    figures = {"step_us": took / steps / 1e3, "clock_us": (time.monotonic_ns() - clock) / steps / 1e3}
    if way == "memctl":
        worker, whole = (now - then for now, then in zip(settled(launcher), theirs, strict=True))
        figures |= {"worker_us": worker / steps * 1e6, "launcher_us": whole / steps * 1e6}
        figures["produced"] = sys.modules["memctl_agent"].status()["produced"]
        status = Path("/proc/self/status").read_text()
        figures["shared_kib"] = int(status.split("RssShmem:")[1].split()[0])
    print("BLOCKS " + json.dumps(figures), flush=True)


def measured(argv: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The figures that a training printed."""
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("BLOCKS ")]
    if done.returncode or not lines:
        sys.exit(f"{argv}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(lines[-1].removeprefix("BLOCKS "))


def recorded(memctl: str, training: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """A recorded training, and its report from the store."""
    with tempfile.TemporaryDirectory() as folder:
        place = [memctl, "--data-dir", folder]
        figures = measured([*place, "run", "--job", "blocks", "--", *training], environment)
        query = [*place, "query", "--job", "blocks", "-o", "json"]
        answer = json.loads(subprocess.run(query, env=environment, capture_output=True, check=True).stdout)
    completeness = answer["completeness"]
    figures |= {"completeness": completeness, "state": answer["job"]["state"]}
    stored = completeness["events_stored"]
    whole = completeness["exact"] and completeness["events_dropped"] == 0 and stored >= figures["produced"] > 0
    figures["whole"] = whole and answer["job"]["state"] == "finished"
    return figures


def against(ways: dict[str, list[dict[str, Any]]], way: str, of: str) -> str:
    """A way's step against the plain one of the same round: the median of the ratios, and the middle half of them."""
    if way not in ways or "plain" not in ways:
        return "-"
    pairs = zip(ways[way], ways["plain"], strict=True)
    ratios = sorted(mine[of] / plain[of] for mine, plain in pairs)
    quarter = len(ratios) // 4
    return f"{statistics.median(ratios):.3f} ({ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f})"


def table(results: dict[int, dict[str, list[dict[str, Any]]]], of: str) -> None:
    """Medians, as Markdown: of the time on a core (`step_us`) or on the clock (`clock_us`)."""
    titles = ["live blocks", "a step", "plain again", "PyTorch's recorder", "memctl", "worker", "to the first"]
    titles += ["launcher", "shared memory", "whole"]
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    first = None
    for blocks, ways in results.items():
        plain = [run[of] for run in ways.get("plain", [])]
        cells = [f"{statistics.median(plain):.0f} µs" if plain else "-"]
        cells += [against(ways, way, of) for way in WAYS[1:]]
        if memctl := ways.get("memctl"):
            worker, launcher, shared = (
                statistics.median(run[of] for run in memctl) for of in ("worker_us", "launcher_us", "shared_kib")
            )
            first = first or worker
            cells += [f"{worker:.0f} µs", f"{worker / first:.2f}", f"{launcher:.0f} µs", f"{shared / 1024:.1f} MiB"]
            cells.append(f"{sum(run['whole'] for run in memctl)} of {len(memctl)}")
        print(f"| {blocks} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memctl", default=shutil.which("memctl"))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--model", default="tiny", choices=("tiny", "transformer"))
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--as", dest="way", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.train is not None:
        return train(asked.train, asked.steps, asked.way, asked.model)
    results: dict[int, dict[str, list[dict[str, Any]]]] = {n: {way: [] for way in asked.ways} for n in asked.blocks}
    for number in range(asked.rounds):
        for blocks, ways in results.items():
            training = [sys.executable, __file__, "--model", asked.model, "--steps", str(asked.steps)]
            training += ["--train", str(blocks), "--as"]
            turn = number % len(asked.ways)
            for way in asked.ways[turn:] + asked.ways[:turn]:
                environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMCTL_RUN")}
                if way == "memctl":
                    ways[way].append(recorded(asked.memctl, [*training, way], environment))
                else:
                    ways[way].append(measured([*training, way], environment))
                print(f"round {number + 1}, {blocks} blocks, {way}: {ways[way][-1]}", file=sys.stderr, flush=True)
    table(results, "step_us")
    if asked.model != "tiny":
        print("\nOn the clock:\n")
        table(results, "clock_us")
    if asked.output:
        asked.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
