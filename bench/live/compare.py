"""Compares what memctl stored of a job with PyTorch's own traces of the same run (train.py with TRACE=FOLDER).

    python compare.py --job J --trace FOLDER --ranks 4 -- memctl [--data-dir D]

Every event of PyTorch's trace must be stored, in order and without a gap (action, size, address, stream). The allocated
and reserved bytes at the epochs' ends must equal the values that the loop read. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import csv
import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

Event = tuple[str, int, int, int]


def theirs(path: Path) -> list[Event]:
    with path.open("rb") as file:
        trace = pickle.load(file)
    return [
        (entry["action"], entry["size"], entry.get("addr", entry.get("device_free", 0)), entry["stream"])
        for entry in trace
        if entry["action"] != "snapshot"
    ]


def ours(memctl: list[str], job: str, rank: int, device: int) -> list[Event]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.csv"
        command = [*memctl, "export", "--job", job, "--rank", str(rank), "--format", "csv", "-f", str(path)]
        subprocess.run(command, check=True)
        with path.open() as lines:
            return [
                (
                    row["action"],
                    int(row["size_bytes"]),
                    int(row["address"] or row["device_free_bytes"] or "0", 0),
                    int(row["stream"], 0),
                )
                for row in csv.DictReader(lines)
                if row["action"] != "snapshot" and int(row["device"]) == device
            ]


def first_difference(part: list[Event], whole: list[Event]) -> str:
    """Returns an empty result if `part` is in `whole` without a gap."""
    starts = [at for at in range(len(whole)) if whole[at : at + 50] == part[:50]]
    if not starts:
        return "PyTorch's first 50 events are not among those stored"
    for start in starts:
        stored = whole[start : start + len(part)]
        if stored == part:
            return ""
    at = next((at for at, (a, b) in enumerate(zip(part, stored)) if a != b), len(stored))
    return f"event {at}: PyTorch {part[at]}, stored {stored[at] if at < len(stored) else 'nothing'}"


def epochs(answer: dict[str, Any], path: Path) -> str:
    ends = {end["epoch"]: end for end in answer["epoch_ends"]}
    for counters in json.loads(path.read_text()):
        end = ends.get(counters["epoch"])
        if end is None:
            return f"epoch {counters['epoch']} has no end"
        for name in ("allocated", "reserved"):
            if end[f"{name}_bytes"] != counters[name]:
                return f"epoch {counters['epoch']}: {name} {end[f'{name}_bytes']}, the loop read {counters[name]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("memctl", nargs="+")
    asked = parser.parse_args()
    answer = json.loads(
        subprocess.run(
            [*asked.memctl, "query", "--job", asked.job, "-o", "json"], check=True, capture_output=True, text=True
        ).stdout
    )
    print("job", json.dumps(answer["job"]), "completeness", json.dumps(answer["completeness"]))
    wrong = 0
    for rank in range(asked.ranks):
        trace = theirs(asked.trace / f"rank{rank}.pickle")
        stored = ours(asked.memctl, asked.job, rank, rank)
        found = next(entry for entry in answer["ranks"] if entry["rank"] == rank)
        events, ends = first_difference(trace, stored), epochs(found, asked.trace / f"rank{rank}.json")
        wrong += bool(events) + bool(ends)
        counts = f"PyTorch {len(trace)} events, stored {len(stored)}: {events or 'EQUAL'}"
        print(f"rank {rank}: {counts}; {found['epochs']} epochs, {found['steps']} steps: {ends or 'EQUAL'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
