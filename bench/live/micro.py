"""The cost of one allocation and its free, plain, recorded, and with PyTorch's own recorder: in one process.

    python micro.py [--training] [--depth 1 20] [--rounds 15] [-o result.json]

A pair is `torch.empty(1024, device="cuda")` and the drop of the tensor: three allocator events (allocation, free
requested, free completed), one of which carries a stack. The loop runs under `depth` Python frames. Ways, each
the median of `rounds` blocks of 10,000 pairs, in the thread's own time on a core:

    plain      nothing attached
    history    torch.cuda.memory._record_memory_history(context="all", stacks="python"), switched off again
    tracker    PyTorch's part of a trace tracker: memctl's gate is closed, PyTorch builds its TraceEntry all the same
    events     memctl without stacks
    stacks     memctl with the stack of every allocation

With --training a block is 20 steps of a small transformer instead, and the result is nanoseconds per allocation of its
forward passes and its optimizer: these run on the timed thread, with a training's own work between two allocations.
(The backward pass runs on a thread of autograd's.) Stacks are as many and as deep as PyTorch's modules make them.

Needs no daemon: events that cannot be sent wait in memory and are dropped, which costs the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAIRS = 10_000
# The ways that are measured with the tracker attached.
WAYS = ["tracker", "events", "stacks"]


def block() -> float:
    """Nanoseconds per pair."""
    import torch

    empty = torch.empty
    begun = time.thread_time_ns()
    for _ in range(PAIRS):
        tensor = empty(1024, device="cuda")
        del tensor
    return (time.thread_time_ns() - begun) / PAIRS


class Training:
    """Steps of a small transformer."""

    STEPS = 20

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, 4).to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(4, 16, 32, device="cuda")
        self.made = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]
        self.step()
        before = self.made()
        loss = self.forward()
        forward = self.made() - before
        loss.backward()
        before = self.made()
        self.optimizer.step()
        self.allocations = forward + self.made() - before

    def forward(self) -> Any:
        return self.model(self.batch).square().mean()

    def step(self) -> int:
        """Nanoseconds on the core, without the backward pass."""
        self.optimizer.zero_grad()
        begun = time.thread_time_ns()
        loss = self.forward()
        took = time.thread_time_ns() - begun
        loss.backward()
        begun = time.thread_time_ns()
        self.optimizer.step()
        return took + time.thread_time_ns() - begun

    def block(self) -> float:
        """Nanoseconds per allocation, after steps in which a new session has recorded the stacks."""
        for _ in range(2):
            self.step()
        return sum(self.step() for _ in range(self.STEPS)) / self.STEPS / self.allocations


def under(depth: int, body: Callable[[], float]) -> float:
    """Runs the body under so many frames."""
    return under(depth - 1, body) if depth > 1 else body()


def measure(depths: list[int], rounds: int, block: Callable[[], float]) -> dict[int, float]:
    block()
    return {depth: statistics.median(under(depth, block) for _ in range(rounds)) for depth in depths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()

    import torch

    from memctl_agent import _native, _shim

    torch.cuda.init()
    body = Training().block if asked.training else block
    ways: dict[str, dict[int, float]] = {"plain": measure(asked.depth, asked.rounds, body)}
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=100_000)
    ways["history"] = measure(asked.depth, asked.rounds, body)
    torch.cuda.memory._record_memory_history(enabled=None)
    shim = str(_shim.ensure(torch, _native.shim_source()).path)
    devices = [(0, None, "GPU", None)]

    def start() -> None:
        _native.start(job="micro", framework="torch", conf="", devices=devices, daemon="http://127.0.0.1:9")
        _native.attach_hook(shim, 0, _shim.build_of(torch))

    # The tracker cannot be detached, so plain runs first. The others alternate, so that a drift of the clock affects
    # all equally. Each uses a new session, because the known stacks belong to the session.
    status: dict[str, object] = {}
    took: dict[str, dict[int, list[float]]] = {way: {depth: [] for depth in asked.depth} for way in WAYS}
    for _ in range(asked.rounds):
        for way in WAYS:
            if way != "tracker":
                start()
            if way == "stacks" and not _native.check_stacks():
                sys.exit("stacks are not recorded here: this Python's frames are laid out otherwise")
            for depth in asked.depth:
                took[way][depth].append(under(depth, body))
            if way != "tracker":
                status = _native.status()
                _native.stop("", 0.0)
    for way in WAYS:
        ways[way] = {depth: statistics.median(took[way][depth]) for depth in asked.depth}

    print("| way | " + " | ".join(f"ns a pair, {depth} frames | over plain" for depth in asked.depth) + " |")
    print("|---|" + "---|---|" * len(asked.depth))
    for way, row in ways.items():
        cells = " | ".join(f"{row[depth]:.0f} | {row[depth] - ways['plain'][depth]:+.0f}" for depth in asked.depth)
        print(f"| {way} | {cells} |")
    first, last = asked.depth[0], asked.depth[-1]

    def more(way: str, than: str, depth: int) -> float:
        """The median of the rounds' differences: both were measured within one."""
        pairs = zip(took[way][depth], took[than][depth], strict=True)
        return statistics.median(mine - other for mine, other in pairs)

    # A pair is three events; the figure per allocation of a training also includes its frees.
    hook = [more("events", "tracker", depth) / 3 for depth in (first, last)]
    stack = [more("stacks", "events", depth) for depth in (first, last)]
    own = [ways["history"][depth] - ways["plain"][depth] for depth in (first, last)]
    unit = "an allocation" if asked.training else "a pair"
    print(
        f"memctl: {hook[0]:.0f} and {hook[1]:.0f} ns an event; a stack of {first} and {last} frames "
        f"{stack[0]:.0f} and {stack[1]:.0f} ns; PyTorch's recorder {own[0]:.0f} and {own[1]:.0f} ns {unit}"
    )
    print(f"the last session: {status['produced']} events, {status['stacks']} stacks, {status['dropped']} dropped")
    if asked.output:
        asked.output.write_text(json.dumps({"ns_a_pair": ways, "status": status}, indent=1, default=str))


if __name__ == "__main__":
    main()
