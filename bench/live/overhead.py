"""What recording costs a training: GPT-2 small, plain and recorded, alternating on one GPU.

    python overhead.py [--batch 1 8] [--rounds 100] [--steps 5] [--repeats 2] [--memctl PATH] [-o result.json]

Each way of running is a process of its own with its own model; a driver lets one of them at a time run a block of steps,
in a new random order every round, so that clocks, temperature and neighbours hit all alike. A round gives one pair per
way: its time over the plain process's time in that round. Reported are the median of all pairs and the interval that
covers the median with 95 % (order statistics). Two plain processes show what pairs of equals come to. Several repeats,
with new processes, average over what a process is born with (addresses, page colours). Blocks are short (a tenth of a
second) and all processes train on the same few cores, because a virtual machine's neighbours change its speed from one
second to the next; launchers and their threads run elsewhere. The rivals, which cost tens of percent, take part in every
tenth round only.

Ways: plain, plain again, memctl without stacks, memctl with the stack of every allocation, PyTorch's own history with
Python stacks, torch.profiler with profile_memory. memctl runs as users run it: `memctl run -- python …`.
Refuses to run without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLAIN = "plain"
RIVALS = ["history, python stacks", "profiler, profile_memory"]
# How many rounds pass between two in which the rivals take part.
RIVALS_EVERY = 10
# Cores for the training processes: main thread, autograd thread, and some for the system.
CORES = 6
WAYS = [PLAIN, "plain again", "memctl without stacks", "memctl", *RIVALS]
SEQUENCE = 512


def model_step(batch: int, dimensions: dict[str, int]) -> Callable[[], None]:
    """A training step of GPT-2 under bf16 autocast, as an unmodified script has it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**dimensions)).cuda()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(0, model.config.vocab_size, (batch, min(SEQUENCE, model.config.n_positions)), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def worker(way: str, batch: int, dimensions: dict[str, int]) -> None:
    """Runs blocks of steps as the driver asks for them; answers each with the seconds a step took."""
    import torch

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:CORES])
    if way == "history, python stacks":
        torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=200_000)
    step = model_step(batch, dimensions)
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        steps = int(line)
        profiler = None
        if way == "profiler, profile_memory":
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
            profiler.__enter__()
        # A step to warm caches that another process has cooled; it is not timed.
        step()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        spent = time.perf_counter() - begun
        if profiler is not None:
            profiler.__exit__(None, None, None)
        print(spent / steps, flush=True)
    if way.startswith("memctl"):
        import memctl_agent

        print(json.dumps(memctl_agent.status(), default=str), flush=True)


class Way:
    """A process of one way."""

    def __init__(self, way: str, batch: int, memctl: str, data: Path, dimensions: dict[str, int]) -> None:
        command = [sys.executable, __file__, "--worker", way, "--batch", str(batch)]
        command += ["--dimensions", json.dumps(dimensions)]
        environment = dict(os.environ)
        if way.startswith("memctl"):
            folder = data / way.replace(" ", "-")
            command = [memctl, "--data-dir", str(folder), "run", "--job", way.replace(" ", "-"), "--", *command]
            environment["MEMCTL_STACKS"] = "0" if "without" in way else "1"
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
        )
        self.status: dict[str, Any] = {}

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended early, exit code {self.process.wait()}")
        return line

    def ready(self) -> None:
        while self.line().strip() != "ready":
            pass

    def block(self, steps: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.line())

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        for line in self.process.stdout:
            if line.startswith("{"):
                self.status = json.loads(line)
        self.process.wait(120)


def interval(pairs: list[float]) -> tuple[float, float, float]:
    """Median, and the order statistics that enclose it with 95 % (normal approximation of the binomial)."""
    pairs = sorted(pairs)
    count = len(pairs)
    reach = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(count / 2 + reach))
    middle = pairs[count // 2] if count % 2 else (pairs[count // 2 - 1] + pairs[count // 2]) / 2
    return middle, pairs[low], pairs[high]


def measure(batch: int, asked: argparse.Namespace) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {way: [] for way in asked.ways}
    pairs: dict[str, list[float]] = {way: [] for way in asked.ways}
    statuses: dict[str, Any] = {}
    order = random.Random(batch)
    for repeat in range(asked.repeats):
        with tempfile.TemporaryDirectory(prefix="memctl-overhead-") as data:
            ways = {way: Way(way, batch, asked.memctl, Path(data), asked.dimensions) for way in asked.ways}
            for way in ways.values():
                way.ready()
            for number in range(asked.rounds):
                names = [way for way in ways if way not in RIVALS or number % RIVALS_EVERY == 0]
                order.shuffle(names)
                took = {name: ways[name].block(asked.steps) for name in names}
                for name, spent in took.items():
                    seconds[name].append(spent)
                    pairs[name].append(spent / took[PLAIN] - 1)
            for name, way in ways.items():
                way.end()
                if way.status:
                    statuses[f"{name}, repeat {repeat}"] = way.status
    rows = {}
    for name in asked.ways:
        middle, low, high = interval(pairs[name])
        rows[name] = {
            "ms_a_step": 1000 * interval(seconds[name])[0],
            "slower": middle,
            "slower_low": low,
            "slower_high": high,
            "pairs": pairs[name],
        }
    return {"batch": batch, "rows": rows, "status": statuses}


def machine() -> dict[str, str]:
    import torch
    import transformers

    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cpu": next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "?"),
        "cores": str(os.cpu_count()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--memctl", default="memctl")
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument("--dimensions", type=json.loads, default={}, help="of GPT2Config, for a smaller model")
    parser.add_argument("--worker")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.worker, asked.batch[0], asked.dimensions)
        return
    result: dict[str, Any] = {"machine": machine(), "rounds": asked.rounds, "steps": asked.steps, "batches": []}
    for batch in asked.batch:
        measured = measure(batch, asked)
        result["batches"].append(measured)
        print(f"\nbatch {batch}: {asked.repeats} x {asked.rounds} rounds of {asked.steps} steps\n")
        print("| way | ms a step | slower by | 95 % |\n|---|---|---|---|")
        for name, row in measured["rows"].items():
            span = f"{100 * row['slower_low']:+.2f} to {100 * row['slower_high']:+.2f} %"
            print(f"| {name} | {row['ms_a_step']:.2f} | {100 * row['slower']:+.2f} % | {span} |", flush=True)
        if asked.output:
            asked.output.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
