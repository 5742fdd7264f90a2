"""The cost of the search for holders: the same training with and without it, alternately, on one GPU.

    python holders_paired.py [--rounds 5] [--steps 600] [--found] [-o FILE]

The training keeps a piece of every step's output among half a million objects of a class, each with a list. The
collector tracks 1.27 million objects. With `--found` a global list keeps the piece, and the search finds it within
milliseconds. Without it, only a walk over the whole heap finds the piece, so the search uses its whole budget. The runs
are `memctl run` and `memctl run --no-holders`, in alternating order. Prints the medians of the pairs' ratios of the
whole time and of the median step, the longest steps, and whether all runs have bitwise equal results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TRAINING = """
import gc, struct, sys, time, torch, torch.nn as nn

class Item:
    pass

def remember(h):
    KEEPS.append(h.detach()[:64].clone())

def step(x):
    h = model(x)
    loss = h.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    remember(h)
    return loss

torch.manual_seed(0)
heap = []
for number in range(500_000):
    item = Item()
    item.parts = [number]
    heap.append(item)
kept = []
KEEPS = kept if sys.argv[2] == "found" else None
if KEEPS is None:
    def remember(h):
        heap[250_000].parts.append(h.detach()[:64].clone())
layers = [layer for _ in range(12) for layer in (nn.Linear(2048, 2048), nn.GELU())]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(8192, 2048, device="cuda")
for _ in range(30):
    step(x)
torch.cuda.synchronize()
each, began = [], time.perf_counter()
for _ in range(int(sys.argv[1])):
    before = time.perf_counter()
    loss = step(x)
    torch.cuda.synchronize()
    each.append(time.perf_counter() - before)
total = time.perf_counter() - began
median, bits = sorted(each)[len(each) // 2], struct.pack("f", loss.item()).hex()
print("RESULT", total, median, max(each), bits, len(gc.get_objects()))
"""


class Run(NamedTuple):
    """One training: seconds of all steps, of the median step and of the longest, the last loss's bits, objects."""

    total: float
    median: float
    longest: float
    bits: str
    objects: int


def train(flags: list[str], job: str, words: list[str], environment: dict[str, str]) -> Run:
    """Runs it once."""
    command = ["memctl", "run", *flags, "--job", job, "--", sys.executable, "train.py", *words]
    ran = subprocess.run(command, env=environment, cwd=environment["HOME"], capture_output=True, text=True, check=True)
    line = next(line for line in ran.stdout.splitlines() if line.startswith("RESULT"))
    _, total, median, longest, bits, objects = line.split()
    return Run(float(total), float(median), float(longest), bits, int(objects))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--found", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        Path(home, "train.py").write_text(TRAINING, encoding="utf-8")
        environment = dict(os.environ, HOME=home, XDG_DATA_HOME=f"{home}/share", MEMCTL_SERVICE_IDLE="10s")
        words = [str(asked.steps), "found" if asked.found else "hidden"]
        train([], "warm", ["5", words[1]], environment)
        pairs: list[dict[str, Run]] = []
        for number in range(asked.rounds):
            ways = [("with", list[str]()), ("without", ["--no-holders"])]
            if number % 2:
                ways.reverse()
            pairs.append({way: train(flags, f"{way}{number}", words, environment) for way, flags in ways})
        subprocess.run(["memctl", "daemon", "stop", "-q"], env=environment, check=False)
    runs = [run for pair in pairs for run in pair.values()]
    figures = {
        "total_ratio": statistics.median(pair["with"].total / pair["without"].total for pair in pairs),
        "step_ratio": statistics.median(pair["with"].median / pair["without"].median for pair in pairs),
        "longest_step_with": max(pair["with"].longest for pair in pairs),
        "longest_step_without": max(pair["without"].longest for pair in pairs),
        "equal_bits": len({run.bits for run in runs}) == 1,
        "objects": max(run.objects for run in runs),
    }
    print(json.dumps(figures, indent=1))
    if asked.output is not None:
        asked.output.write_text(json.dumps([{way: run._asdict() for way, run in pair.items()} for pair in pairs]))


if __name__ == "__main__":
    main()
