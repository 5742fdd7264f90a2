"""The cost of recording for a training: GPT-2 small, plain and recorded, on one GPU of a machine with other load.

    python overhead.py [--batch 1] [--rounds 40] [--repeats 3] [--steps 5] [--toggles 40] [--memctl PATH] [-o FILE]

Each way of running is a separate process with its own model. One process at a time runs a block of steps, in a new
random order every round, so that clocks, temperature and neighbours affect all equally. All train on the same two cores
(one hardware thread of each, if the topology is visible); launchers run on others. Every step is timed separately,
synchronised with the GPU before and after, in all ways. Neighbours of a virtual machine can only slow a step down. So
there are three figures: the median of the rounds' ratios, the median of the ratios of each round's fastest steps, and
the ratio of the 20th percentiles of all steps, per repeat and then averaged, with an interval from resampling whole
rounds. A second plain process shows the difference between equal processes; new processes in every repeat average over
differences at start. The second measure is the processor time of the training process (all its threads, until the last
kernel is launched); `quiet` compares plain rounds with halted and with running launchers, which shows the effect of
their sampling.

The third measure is one process that attaches and detaches (`toggle`), with the same model and memory: the gate of the
trace tracker closed (PyTorch still builds its TraceEntry), events, stacks, stacks and marks; and the cost of single
calls. Refuses to run without a GPU. (Over 400 lines: driver, worker and estimator share one protocol.)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLAIN = "plain"
# What PyTorch takes for any tracker at all: one that does nothing, with no memctl in the process.
EMPTY = "an empty tracker"
RIVALS = ["history, python stacks", "profiler, profile_memory"]
WAYS = [PLAIN, "plain again", EMPTY, "memctl without stacks", "memctl", *RIVALS]
# In the toggling process; the first is what the others are compared with.
TOGGLES = ["gate closed", "events", "stacks", "stacks and marks"]
# The rivals, which cost tens of percent, take part in so few rounds, the launchers are halted in every so many-th.
RIVALS_EVERY, QUIET_EVERY = 10, 4
SEQUENCE = 512
# What is measured of every step, in microseconds: until the GPU is done, until its last kernel is launched, and the
# processor time of the process until then.
MEASURES = ["wall", "launch", "cpu"]
QUANTILE = 0.2
RESAMPLES = 1000

Step = list[float]
Rounds = list[list[Step]]


def split_cores() -> tuple[set[int], set[int]]:
    """Cores to train on, one hardware thread of each of two, and cores for everything else; all for both if too few."""
    allowed = sorted(os.sched_getaffinity(0))
    training: list[int] = []
    taken: set[int] = set()
    for core in allowed[len(allowed) // 2 :]:
        if core not in taken and len(training) < 2:
            training.append(core)
            taken |= siblings(core)
    rest = set(allowed) - taken
    return (set(training), rest) if len(rest) >= 2 else (set(allowed), set(allowed))


def siblings(core: int) -> set[int]:
    """The hardware threads that share this one's core, itself among them."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        spans = [[int(end) for end in part.split("-")] for part in text.strip().split(",")]
        return {core}.union(*(range(span[0], span[-1] + 1) for span in spans))
    except (OSError, ValueError):
        return {core}


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


EMPTY_TRACKER = """
#include <torch/extension.h>
#include <c10/cuda/CUDACachingAllocator.h>
void attach() {
  namespace caching = c10::cuda::CUDACachingAllocator;
  caching::attachAllocatorTraceTracker([](const caching::TraceEntry&) {});
}
"""


def attach_empty_tracker() -> None:
    """A tracker that does nothing, attached as memctl attaches its own."""
    import torch
    from torch.utils import cpp_extension

    torch.cuda.init()
    cpp_extension.load_inline("memctl_empty_tracker", EMPTY_TRACKER, functions=["attach"], with_cuda=True).attach()


def timed_block(step: Callable[[], None], steps: int) -> list[Step]:
    """A step to warm the caches that another process has cooled, then so many timed ones."""
    import torch

    step()
    torch.cuda.synchronize()
    taken = []
    for _ in range(steps):
        cpu = time.process_time_ns()
        begun = time.perf_counter_ns()
        step()
        launched = time.perf_counter_ns()
        cpu = time.process_time_ns() - cpu
        torch.cuda.synchronize()
        ended = time.perf_counter_ns()
        taken.append([round(ns / 1000, 1) for ns in (ended - begun, launched - begun, cpu)])
    return taken


def worker(way: str, batch: int, dimensions: dict[str, int]) -> None:
    """Runs blocks of steps as the driver asks for them; answers each with what its steps took."""
    os.sched_setaffinity(0, split_cores()[0])
    import torch

    if way == "history, python stacks":
        torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=200_000)
    if way == EMPTY:
        attach_empty_tracker()
    step = model_step(batch, dimensions)
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        profiler = None
        if way == "profiler, profile_memory":
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
            profiler.__enter__()
        taken = timed_block(step, int(line))
        if profiler is not None:
            profiler.__exit__(None, None, None)
        print(json.dumps(taken), flush=True)
    if way.startswith("memctl"):
        import memctl_agent

        print(json.dumps(memctl_agent.status(), default=str), flush=True)


def toggler(rounds: int, steps: int, batch: int, dimensions: dict[str, int]) -> None:
    """Attaches and detaches around blocks of steps in this one process; prints what the steps took by way."""
    training, rest = split_cores()
    os.sched_setaffinity(0, training)
    import memctl_agent

    step = model_step(batch, dimensions)
    for _ in range(8):
        step()

    def attach(way: str) -> None:
        # Threads inherit the cores of their parent: delivery, which a launcher would do, belongs elsewhere.
        os.sched_setaffinity(0, rest)
        options = {"stacks": way != "events", "auto": way == "stacks and marks"}
        if not memctl_agent.attach("toggle", daemon="http://127.0.0.1:9", **options):
            raise SystemExit(f"not attached: {memctl_agent.status()}")
        os.sched_setaffinity(0, training)

    attach("stacks and marks")
    level = memctl_agent.status()["level"]
    memctl_agent.detach()
    taken: dict[str, Rounds] = {way: [] for way in TOGGLES}
    produced: dict[str, Any] = {}
    order = random.Random(0)
    for _ in range(rounds):
        for way in order.sample(TOGGLES, len(TOGGLES)):
            if way == TOGGLES[0]:
                taken[way].append(timed_block(step, steps))
                continue
            attach(way)
            before = int(str(memctl_agent.status()["produced"]))
            taken[way].append(timed_block(step, steps))
            status = memctl_agent.status()
            produced[way] = (int(str(status["produced"])) - before) / (steps + 1)
            memctl_agent.detach()
    attach("stacks and marks")
    calls = single_calls()
    memctl_agent.detach()
    print(json.dumps({"steps": taken, "items_a_step": produced, "level": level, "us_a_call": calls}), flush=True)


def single_calls() -> dict[str, float]:
    """Microseconds a call: the median of 500, of what a step calls a few times."""
    import torch

    from memctl_agent import _native

    def cost(call: Callable[[], object]) -> float:
        taken = []
        for _ in range(500):
            begun = time.perf_counter_ns()
            call()
            taken.append(time.perf_counter_ns() - begun)
        return sorted(taken)[250] / 1000

    return {
        "nothing": cost(lambda: None),
        "mark, begin of a step": cost(lambda: _native.mark(3, 1)),
        "mark, end of a step": cost(lambda: _native.mark(4, 1)),
        "mark, begin of a phase": cost(lambda: _native.mark(5, 3)),
        "torch.cuda.mem_get_info": cost(torch.cuda.mem_get_info),
        "torch.cuda.memory_stats": cost(torch.cuda.memory_stats),
    }


class Way:
    """A process of one way."""

    def __init__(self, way: str, asked: argparse.Namespace, batch: int, data: Path, seed: int) -> None:
        command = [sys.executable, __file__, "--worker", way, "--batch", str(batch)]
        command += ["--dimensions", json.dumps(asked.dimensions)]
        # One order of hashes for all ways of a repeat, another in the next.
        environment = dict(os.environ, PYTHONHASHSEED=str(seed))
        self.is_launched = way.startswith("memctl")
        if self.is_launched:
            folder = data / way.replace(" ", "-")
            command = [asked.memctl, "--data-dir", str(folder), "run", "--job", folder.name, "--", *command]
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
        if self.is_launched:
            # The launcher's threads go where training does not; the worker has chosen its own cores.
            for thread in os.listdir(f"/proc/{self.process.pid}/task"):
                os.sched_setaffinity(int(thread), split_cores()[1])

    def block(self, steps: int) -> list[Step]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def halt(self, is_halted: bool) -> None:
        """Halts the launcher, or lets it go on; the training process is not touched."""
        if self.is_launched:
            self.process.send_signal(signal.SIGSTOP if is_halted else signal.SIGCONT)

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        spent = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        self.process.stdin.close()
        for line in self.process.stdout:
            if line.startswith("{"):
                self.status = json.loads(line)
        if self.is_launched:
            # utime and stime, in ticks.
            self.status["launcher_cpu_s"] = (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")
        self.process.wait(120)


def median(values: list[float]) -> tuple[float, float, float]:
    """Median, and the order statistics that enclose it with 95 % (normal approximation of the binomial)."""
    values = sorted(values)
    count = len(values)
    reach = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(count / 2 + reach))
    middle = values[count // 2] if count % 2 else (values[count // 2 - 1] + values[count // 2]) / 2
    return middle, values[low], values[high]


def low(rounds: Rounds, measure: int) -> float:
    """The low quantile of all steps of these rounds."""
    values = sorted(step[measure] for block in rounds for step in block)
    return values[int(QUANTILE * len(values))]


def compare(repeats: list[tuple[Rounds, Rounds]], measure: int) -> dict[str, Any]:
    """How much slower the second of each pair is.

    The median over rounds of their blocks' medians and of their blocks' fastest steps; and low quantiles of all steps.
    """
    ratios = [
        median([step[measure] for step in other])[0] / median([step[measure] for step in base])[0] - 1
        for bases, others in repeats
        for base, other in zip(bases, others)
    ]
    floors = [
        min(step[measure] for step in other) / min(step[measure] for step in base) - 1
        for bases, others in repeats
        for base, other in zip(bases, others)
    ]
    chance = random.Random(1)

    def slower(draws: list[list[int]]) -> list[float]:
        return [
            low([others[i] for i in draw], measure) / low([bases[i] for i in draw], measure) - 1
            for (bases, others), draw in zip(repeats, draws)
        ]

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    each = slower([list(range(len(bases))) for bases, _ in repeats])
    resampled = sorted(
        mean(slower([chance.choices(range(len(bases)), k=len(bases)) for bases, _ in repeats]))
        for _ in range(RESAMPLES)
    )
    return {
        "us": mean([low(others, measure) for _, others in repeats]),
        "paired": median(ratios),
        "fastest": median(floors),
        "low": [mean(each), resampled[int(0.025 * RESAMPLES)], resampled[int(0.975 * RESAMPLES)]],
        "low_by_repeat": each,
    }


def one_repeat(batch: int, asked: argparse.Namespace, repeat: int, statuses: dict[str, Any]) -> dict[str, Any]:
    """New processes, all rounds: steps by way, and which rounds were quiet."""
    order = random.Random(f"{batch} {repeat}")
    names = [way for way in asked.ways if way not in RIVALS or repeat == 0]
    taken: dict[str, Rounds] = {way: [] for way in names}
    quiet: list[bool] = []
    deadline = time.monotonic() + asked.seconds
    with tempfile.TemporaryDirectory(prefix="memctl-overhead-") as data:
        ways = {way: Way(way, asked, batch, Path(data), repeat + 1) for way in names}
        for way in ways.values():
            way.ready()
        for number in range(asked.rounds):
            if time.monotonic() > deadline:
                break
            quiet.append(number % QUIET_EVERY == QUIET_EVERY - 1)
            for way in ways.values():
                way.halt(quiet[-1])
            now = [way for way in names if way not in RIVALS or number % RIVALS_EVERY == 0]
            blocks = {name: ways[name].block(asked.steps) for name in order.sample(now, len(now))}
            for name in names:
                taken[name].append(blocks.get(name, []))
        for name, way in ways.items():
            way.halt(False)
            way.end()
            if way.status:
                statuses[f"{name}, repeat {repeat}"] = way.status
    return {"steps": taken, "quiet": quiet}


def measure(batch: int, asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    result: dict[str, Any] = {"batch": batch, "rows": {}, "status": {}, "repeats": []}
    for repeat in range(asked.repeats):
        result["repeats"].append(one_repeat(batch, asked, repeat, result["status"]))
        for name in asked.ways:
            both = [
                ([b for b, o in zip(runs["steps"][PLAIN], runs["steps"][name]) if o],
                 [o for o in runs["steps"][name] if o])
                for runs in result["repeats"] if name in runs["steps"]
            ]  # fmt: skip
            result["rows"][name] = {what: compare(both, place) for place, what in enumerate(MEASURES)}
        result["quiet"] = disturbance(result["repeats"])
        save(result)
    return result


def disturbance(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """How much slower plain steps are while the launchers run than while they are halted."""
    said = {}
    for place, what in enumerate(MEASURES):
        halted = [s[place] for r in repeats for q, block in zip(r["quiet"], r["steps"][PLAIN]) if q for s in block]
        going = [s[place] for r in repeats for q, block in zip(r["quiet"], r["steps"][PLAIN]) if not q for s in block]
        if halted and going:
            at = [sorted(values)[int(QUANTILE * len(values))] for values in (halted, going)]
            said[what] = {"low": at[1] / at[0] - 1, "median": median(going)[0] / median(halted)[0] - 1}
    return said


def toggle(batch: int, asked: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--toggles", str(asked.toggles), "--steps", str(asked.steps)]
    command += ["--batch", str(batch), "--dimensions", json.dumps(asked.dimensions), "--worker", "toggle"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    steps = result["steps"]
    result["rows"] = {
        way: {what: compare([(steps[TOGGLES[0]], steps[way])], place) for place, what in enumerate(MEASURES)}
        for way in TOGGLES
    }
    return result


def table(rows: dict[str, Any]) -> None:
    def span(value: list[float]) -> str:
        return f"{100 * value[0]:+.2f} % ({100 * value[1]:+.2f} to {100 * value[2]:+.2f})"

    print("| way | ms a step | slower, median of rounds | fastest | 20th percentile | by repeat | CPU ms | more |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        wall, cpu = row["wall"], row["cpu"]
        repeats = ", ".join(f"{100 * value:+.2f}" for value in wall["low_by_repeat"])
        cells = [name, f"{wall['us'] / 1000:.2f}", *(span(wall[kind]) for kind in ("paired", "fastest", "low"))]
        cells += [repeats, f"{cpu['us'] / 1000:.2f}", span(cpu["low"])]
        print(f"| {' | '.join(cells)} |", flush=True)


def machine() -> dict[str, Any]:
    import torch
    import transformers

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
    ) if os.path.exists("/usr/bin/nvidia-smi") else None  # fmt: skip
    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": driver.stdout.strip() if driver else "?",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cpu": next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "?"),
        "cores": os.cpu_count(),
        "trained_on": sorted(split_cores()[0]),
    }


def drive(asked: argparse.Namespace) -> None:
    result: dict[str, Any] = {"machine": machine(), "steps": asked.steps, "batches": [], "toggles": []}

    def save(batches: list[Any]) -> None:
        if asked.output:
            asked.output.write_text(json.dumps({**result, "batches": batches}))

    for batch in asked.batch:
        if asked.toggles:
            toggled = toggle(batch, asked)
            result["toggles"].append({"batch": batch, **toggled})
            save(result["batches"])
            print(f"\nbatch {batch}, one process, {asked.toggles} rounds of {asked.steps} steps, {toggled['level']}\n")
            table(toggled["rows"])
            print("items a step:", toggled["items_a_step"], "\nmicroseconds a call:", toggled["us_a_call"])
        done = list(result["batches"])
        measured = measure(batch, asked, lambda part, done=done: save([*done, part]))
        result["batches"].append(measured)
        rounds = [len(repeat["quiet"]) for repeat in measured["repeats"]]
        print(f"\nbatch {batch}: {rounds} rounds of {asked.steps} steps\n")
        table(measured["rows"])
        print("plain beside running launchers against halted ones:", measured["quiet"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=3600, help="a repeat ends after so long, whatever --rounds")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--toggles", type=int, default=40, help="rounds of the toggling process")
    parser.add_argument("--memctl", default="memctl")
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument("--dimensions", type=json.loads, default={}, help="of GPT2Config, for a smaller model")
    parser.add_argument("--worker")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.worker == "toggle":
        toggler(asked.toggles, asked.steps, asked.batch[0], asked.dimensions)
    elif asked.worker:
        worker(asked.worker, asked.batch[0], asked.dimensions)
    else:
        drive(asked)


if __name__ == "__main__":
    main()
