"""memctl's ledger on a real GPU, and how much of the device's memory it leaves unexplained.

    python ledger.py [--epochs 2] [--steps 60] [--batch 8] [--memctl PATH] [-o FILE]

Trains GPT-2 small (train.py's plain loop: AdamW, bf16 autocast) for some seconds under `memctl run`, queries
`memctl ledger` for the peak and for the last epoch's end, and prints both as Markdown beside nvidia-smi's figures at
that epoch's end. The source of every figure is `memctl ledger -o json`. Needs transformers and no network; takes about
a minute. Refuses to run without a GPU, and to print a ledger that does not sum.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

JOB = "gpt2-ledger"
MIB = 1 << 20


def used_by_nvidia_smi() -> Optional[int]:
    """Bytes in use on the GPU that this process computes on, by nvidia-smi; None where there is none."""
    import torch

    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    query = [program, f"--id={uuid}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    return int(answer.stdout) * MIB if answer.returncode == 0 else None


def worker(asked: argparse.Namespace) -> None:
    """Trains; at the last epoch's end it writes the device figures of other tools."""
    import torch
    import train

    if not torch.cuda.is_available():
        raise SystemExit("this needs a GPU")
    shape = {"n_layer": asked.layers, "n_embd": asked.width, "n_head": max(1, asked.width // 64)}
    train.GPT2Config = functools.partial(train.GPT2Config, **shape)
    ended = train.epoch_ended

    def looking(epoch: int) -> None:
        ended(epoch)
        if epoch == asked.epochs - 1:
            free, total = torch.cuda.mem_get_info()
            measured = {
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "driver_used_bytes": total - free,
                "nvidia_smi_used_bytes": used_by_nvidia_smi(),
                "allocated_bytes": train.COUNTERS[-1]["allocated"],
                "reserved_bytes": train.COUNTERS[-1]["reserved"],
            }
            Path(asked.worker).write_text(json.dumps(measured))

    train.epoch_ended = looking
    train.plain(asked)


def ledger(memctl: list[str], *moment: str) -> dict[str, Any]:
    command = [*memctl, "ledger", "--job", JOB, "--rank", "0", *moment, "-o", "json"]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    [rank] = answer["ranks"]
    return rank


def parts(rank: dict[str, Any]) -> list[tuple[str, Optional[int]]]:
    """The parts that sum to the used memory."""
    classes = [(share["class"].replace("_", " "), share["live_bytes"]) for share in rank["classes"]]
    return [
        *classes,
        ("cached", rank["cached_bytes"]),
        ("context and libraries", rank["context_bytes"]),
        ("other processes", rank["others_bytes"]),
        ("unexplained", rank["unexplained_bytes"]),
    ]


def markdown(title: str, rank: dict[str, Any]) -> str:
    used = rank["device_used_bytes"]
    if used is None:
        raise SystemExit(f"{title}: the device was not measured; does NVML answer here? (memctl doctor)")
    if sum(bytes_ or 0 for _, bytes_ in parts(rank)) != used:
        raise SystemExit(f"{title}: the parts do not sum to what is used: {rank}")
    heading = f"### {title} (epoch {rank['epoch']}, step {rank['step']})"
    lines = [heading, "", "| part | MiB | of used |", "|---|---:|---:|"]
    for name, bytes_ in parts(rank):
        shown = "not measured | " if bytes_ is None else f"{bytes_ / MIB:,.1f} | {100 * bytes_ / used:.2f} %"
        lines.append(f"| {name} | {shown} |")
    lines.append(f"| **used on the device** | {used / MIB:,.1f} | 100 % |")
    lines.append("")
    lines.append(f"Unexplained: {100 * rank['unexplained_share']:.3f} % of what is used.")
    return "\n".join(lines)


def beside(measured: dict[str, Any], rank: dict[str, Any]) -> str:
    """memctl's figures and those of other tools at the same epoch's end."""
    reserved = rank["allocated_bytes"] + rank["cached_bytes"]
    rows = [
        ("allocated, memory_stats()", measured["allocated_bytes"], rank["allocated_bytes"]),
        ("reserved, memory_stats()", measured["reserved_bytes"], reserved),
        ("used, cudaMemGetInfo", measured["driver_used_bytes"], rank["device_used_bytes"]),
        ("used, nvidia-smi", measured["nvidia_smi_used_bytes"], rank["device_used_bytes"]),
    ]
    heading = "### Beside what others say at that end"
    lines = [heading, "", "| figure | theirs, MiB | memctl's, MiB |", "|---|---:|---:|"]
    for name, theirs, ours in rows:
        shown = "not there" if theirs is None else f"{theirs / MIB:,.1f}"
        lines.append(f"| {name} | {shown} | {ours / MIB:,.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="an epoch's; NVML is read once a second")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--memctl", default="memctl")
    parser.add_argument("-o", "--output", type=Path, help="write all figures there, as JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked)
        return
    with tempfile.TemporaryDirectory() as folder:
        measured_path = Path(folder) / "told.json"
        memctl = [asked.memctl, "--data-dir", str(Path(folder) / "data")]
        flags = [f"--{name}={getattr(asked, name)}" for name in ("epochs", "steps", "batch", "layers", "width")]
        training = [sys.executable, os.path.abspath(__file__), *flags, "--worker", str(measured_path)]
        subprocess.run([*memctl, "run", "--job", JOB, "--", *training], check=True)
        measured = json.loads(measured_path.read_text())
        peak, end = ledger(memctl, "--peak"), ledger(memctl, "--epoch-end", str(asked.epochs - 1))
    print(f"## The ledger of GPT-2 small on {measured['gpu']}, torch {measured['torch']}, batch {asked.batch}\n")
    print(markdown("At the peak", peak), markdown("At the last epoch's end", end), beside(measured, end), sep="\n\n")
    if asked.output:
        asked.output.write_text(json.dumps({"told": measured, "peak": peak, "end": end}, indent=1) + "\n")


if __name__ == "__main__":
    main()
