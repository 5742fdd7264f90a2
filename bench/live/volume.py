"""Replays very many events of genuine trainings under their own settings and compares each with the recording.

    python bench/live/volume.py MEMCTL OUT [--jobs N] [--seconds S] [--programs]

Each row is a training of tests/workloads/whatif_rows.py under one setting. It runs in a separate process under `memctl
run` and is repeated for S seconds. Then `memctl what-if` replays its requests and states whether every segment event
and every address equals the recording's. Runs on a real GPU, and on the fake one with the variables that
`tests/fakegpu/setup` sets. With --programs the rows are two programs that only allocate and free memory at random,
which makes ten times as many events per second. OUT/volume.jsonl gets a line for each row; the last line sums them up.
Exits with 1 if a replay differs or an event is missing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
WORKLOADS = HERE.parents[1] / "tests/workloads"
# Two streams, MemPools and captured graphs need separate small programs, which the tests replay.
ROWS = (
    ("encoder", ""),
    ("decoder_ema", "expandable_segments:True"),
    ("experts", "max_split_size_mb:32"),
    ("varying_length", ""),
    ("varying_length", "expandable_segments:True"),
    ("checkpointed", "garbage_collection_threshold:0.6"),
    ("curriculum", "roundup_power2_divisions:4"),
    ("residual", ""),
    ("accumulation", "expandable_segments:True,roundup_power2_divisions:8"),
    ("adversarial", "max_split_size_mb:64,garbage_collection_threshold:0.8"),
    ("many_tasks", ""),
    ("graphs", ""),
    ("graphs", "max_split_size_mb:32"),
    ("mixer", "roundup_power2_divisions:[32:8,64:4,256:2,>:1]"),
    ("replay_agent", ""),
    ("gpt_lengths", "expandable_segments:True"),
)

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:64,garbage_collection_threshold:0.8",
    "expandable_segments:True,roundup_power2_divisions:8",
    "roundup_power2_divisions:[32:8,64:4,256:2,>:1]",
)
PROGRAMS = tuple((name, conf) for name in ("churn", "cleared") for conf in SETTINGS)


def train(name: str, seconds: float) -> None:
    """In the recorded process: the training, repeated until the time is over."""
    sys.path[:0] = [str(WORKLOADS)]
    rows = importlib.import_module("whatif_rows")
    torch = importlib.import_module("torch")
    torch.backends.cudnn.enabled = False
    until, turn = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        torch.manual_seed(turn)
        random.seed(turn)
        rows.TRAININGS[name]()
        turn += 1
    torch.cuda.synchronize()


def answer(memctl: str, place: pathlib.Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [memctl, *arguments, "--data-dir", str(place), "-o", "json"], capture_output=True, text=True, check=False
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(f"memctl {' '.join(arguments)}: {done.stderr}")
    return json.loads(done.stdout)


def row(memctl: str, out: pathlib.Path, name: str, conf: str, seconds: float) -> dict[str, Any]:
    """Records a training and replays it."""
    place = out / f"{name}-{zlib.crc32(conf.encode()):08x}"
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf, "OMP_NUM_THREADS": "1"}
    command = [memctl, "run", "--job", name, "--data-dir", str(place), "--"]
    command += [sys.executable, __file__, memctl, str(out), "--one", name, "--seconds", str(seconds)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        return {"training": name, "conf": conf, "failed": run.stderr[-400:]}
    began = time.monotonic()
    report = answer(memctl, place, "what-if", "--job", name, "--rank", "0", "--set", "expandable_segments:True")
    [rank] = report["ranks"]
    return {
        "training": name,
        "conf": conf,
        "torch": rank["recorded"]["torch"],
        "events": report["completeness"]["events_stored"],
        "complete": report["completeness"]["exact"],
        "exact": rank["exact"],
        "differs_at": rank["replayed"]["differs_at"],
        "segments": rank["recorded"]["device_allocs"],
        "replay_seconds": round(time.monotonic() - began, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memctl")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--one")
    asked = parser.parse_args()
    if asked.one:
        train(asked.one, asked.seconds)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(asked.jobs) as several, (asked.out / "volume.jsonl").open("w") as file:
        wanted = PROGRAMS if asked.programs else ROWS
        rows = []
        for made in several.map(lambda it: row(asked.memctl, asked.out, it[0], it[1], asked.seconds), wanted):
            rows.append(made)
            print(json.dumps(made), file=file, flush=True)
            print(json.dumps(made), flush=True)
    good = [made for made in rows if made.get("exact") and made["complete"]]
    print(f"{len(good)} of {len(rows)} recordings repeated, {sum(made['events'] for made in good):,} events")
    raise SystemExit(0 if len(good) == len(rows) else 1)


if __name__ == "__main__":
    main()
