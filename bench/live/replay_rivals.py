"""The replay's speed beside Python tools: events per second of processor time, medians of three, in one run.

    RUN python bench/live/replay_rivals.py FOLDER [--simulator FILE] [--memctl PROGRAM]

FOLDER has the bundled recordings (tests/data/recordings). The first tool is `torch.cuda._memory_viz.trace`, PyTorch's
own pass over a snapshot's events, which places no blocks. The second is Dynapipe's simulator of the caching allocator,
run with the recorded requests of one stream, if FILE is its `allocation_simulator.py`
(awslabs/optimizing-multitask-training-through-dynamic-pipelines, Apache-2.0; needs sortedcontainers). Neither is part
of memctl. PROGRAM is memctl-bench, which runs `replay` at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import pickle
import statistics
import subprocess
import sys
import time
from typing import Any

MIB = 1 << 20


def events_of(path: pathlib.Path) -> dict[str, Any]:
    packed = subprocess.run(["zstd", "-dcq", "--long=27", path], check=True, stdout=subprocess.PIPE)
    return pickle.loads(packed.stdout)


def busiest(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return max(snapshot["device_traces"], key=len)


def walked(snapshot: dict[str, Any], viz: Any) -> float:
    trace = {**snapshot, "device_traces": [busiest(snapshot)]}
    begins = time.process_time()
    viz.trace(trace)
    return time.process_time() - begins


def simulated(snapshot: dict[str, Any], module: Any) -> tuple[float, int]:
    """Seconds, and the simulator's peak of reserved bytes."""
    allocator = module.TorchCachingAllocatorSimulator(1 << 30)
    live: dict[int, Any] = {}
    begins = time.process_time()
    for event in busiest(snapshot):
        action = event["action"]
        if action == "alloc":
            live[event["addr"]] = allocator.malloc(event["size"])
        elif action == "free_completed":
            block = live.pop(event["addr"], None)
            if block is not None:
                allocator.free(block)
    return time.process_time() - begins, allocator.peak_backend_allocated_bytes


def reserved(snapshot: dict[str, Any]) -> int:
    """The recorded peak of reserved bytes of a recording that began without reserved memory."""
    now = peak = 0
    for event in busiest(snapshot):
        if event["action"] in ("segment_alloc", "segment_map"):
            now += event["size"]
        elif event["action"] in ("segment_free", "segment_unmap"):
            now -= event["size"]
        peak = max(peak, now)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--simulator", type=pathlib.Path)
    parser.add_argument("--memctl")
    asked = parser.parse_args()
    import torch.cuda._memory_viz as viz

    snapshots = [events_of(path) for path in sorted(asked.folder.glob("*/rank0.pickle.zst"))]
    count = sum(len(busiest(snapshot)) for snapshot in snapshots)
    walks = [sum(walked(snapshot, viz) for snapshot in snapshots) for _ in range(3)]
    print(f"{count} events of {len(snapshots)} recordings")
    print(f"torch.cuda._memory_viz.trace: {count / statistics.median(walks) / 1e6:.3f} M events/s")
    if asked.simulator:
        spec = importlib.util.spec_from_file_location("allocation_simulator", asked.simulator)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # (its dataclasses look themselves up)
        spec.loader.exec_module(module)
        runs = [[simulated(snapshot, module) for snapshot in snapshots] for _ in range(3)]
        seconds = statistics.median(sum(second for second, _ in run) for run in runs)
        print(f"Dynapipe's simulator: {count / seconds / 1e6:.3f} M events/s")
        for snapshot, (_, peak) in zip(snapshots, runs[0]):
            print(f"  peak reserved {peak / MIB:.0f} MiB, recorded {reserved(snapshot) / MIB:.0f}")
    if asked.memctl:
        subprocess.run([asked.memctl, "replay"], check=True)


if __name__ == "__main__":
    main()
