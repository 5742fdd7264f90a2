"""What `memctl need` forecasts for smaller devices, beside what a training does under the same limits.

    python need.py [--memctl PATH] [--limits 12] [-o FILE]

Records two trainings of a small transformer on a GPU: one with inputs of equal length, one with lengths that vary. Asks
`memctl need` about sizes between their allocated and their reserved peak, and runs each training again with
`torch.cuda.set_per_process_memory_fraction` as the limit. Prints a row for each limit: the outcome, the retries and the
step of the first request that fails, forecast and true. Takes about four minutes, and needs no network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KINDS = ("equal", "varying")
STEPS = 30
WIDTH = 512
BATCH = 16
MIB = 1 << 20


def train(kind: str, limit: int) -> None:
    """The training; prints its outcome as JSON."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, inputs: Any) -> Any:
            normed = self.first(inputs)
            inputs = inputs + self.attention(normed, normed, normed, need_weights=False)[0]
            return inputs + self.mlp(self.second(inputs))

    if limit:
        # A fraction is rounded down to bytes: half a page more is the same limit.
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (limit + 4096) / total))
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(6)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = torch.Generator().manual_seed(1)
    failed_step = None
    for step in range(STEPS):
        length = 256 if kind == "equal" else int(torch.randint(64, 512, (1,), generator=lengths))
        try:
            model(torch.randn(BATCH, length, WIDTH, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        except torch.OutOfMemoryError:
            failed_step = step
            break
    retries = int(torch.cuda.memory_stats()["num_alloc_retries"])
    print(json.dumps({"failed_step": failed_step, "retries": retries}))


def outcome(failed_step: Any, retries: int) -> str:
    """An outcome in the words of the table."""
    if failed_step is not None:
        return f"fails in step {failed_step}"
    return f"fits after {retries} retries" if retries else "fits"


def forecast(size: dict[str, Any]) -> str:
    """The forecast outcome of a size."""
    failure = size.get("failure") or {}
    return outcome(failure.get("step"), size.get("retries") or 0) if size["outcome"] != "unknown" else "unknown"


def compared(kind: str, memctl: str, limits: int, environment: dict[str, str]) -> list[tuple[str, int, str, str]]:
    """The rows of one training: its kind, the limit, the forecast and the truth."""
    own = [sys.executable, str(Path(__file__).resolve()), "--train", kind]
    subprocess.run([memctl, "run", "--job", kind, "--", *own], check=True, env=environment, stdout=subprocess.DEVNULL)
    asked = [memctl, "need", kind, "-o", "json"]
    device = json.loads(subprocess.check_output(asked, env=environment))["devices"][0]
    lowest, highest = device["peak_allocated_bytes"], device["peak_reserved_bytes"]
    outside = device["outside_bytes"] or device["assumed_outside_bytes"] or 0
    reserved = [lowest + (highest - lowest) * at // (limits - 1) for at in range(limits)]
    for bytes_ in reserved:
        asked += ["--size", f"{bytes_ + outside}B"]
    sizes = {
        size["usable_bytes"]: size for size in json.loads(subprocess.check_output(asked, env=environment))["sizes"]
    }
    rows = []
    for bytes_ in reserved:
        true = json.loads(subprocess.check_output([*own, "--limit", str(bytes_)], env=environment))
        rows.append((kind, bytes_, forecast(sizes[bytes_ + outside]), outcome(true["failed_step"], true["retries"])))
    return rows


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memctl", default="memctl")
    parser.add_argument("--limits", type=int, default=12, help="limits for each training, 2 to 16")
    parser.add_argument("--train", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.train:
        train(asked.train, asked.limit)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_DATA_HOME": folder, "MEMCTL_SERVICE": "off"}
        rows = [row for kind in KINDS for row in compared(kind, asked.memctl, asked.limits, environment)]
    right = sum(said == true for _, _, said, true in rows)
    lines = ["| training | limit, MiB | forecast | true |", "|---|---|---|---|"]
    lines += [f"| {kind} | {limit / MIB:.0f} | {said} | {true} |" for kind, limit, said, true in rows]
    lines.append(f"\n{right} of {len(rows)} forecasts are equal to the truth.")
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.output:
        asked.output.write_text(text)


if __name__ == "__main__":
    main()
