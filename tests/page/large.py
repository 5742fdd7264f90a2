#!/usr/bin/env python3
"""Makes the data of `large.mjs`: a process of very many live blocks, and a job of very many ranks.

    large.py blocks COUNT FILE.pickle    a snapshot of one process: COUNT live blocks, then 20,000 requests
    large.py ranks COUNT EPOCHS FOLDER   COUNT snapshots rankN.pickle of one job; every 97th rank grows, no other does
"""

import pathlib
import pickle
import sys

MIB = 1 << 20
BASE = 0x7F0000000000
FRAMES = [[{"name": name, "filename": "train.py", "line": line}] for line, name in enumerate(("layer", "loss", "cache"), 10)]


def snapshot(segments: list, trace: list, annotations: list) -> dict:
    return {
        "segments": segments,
        "device_traces": [trace],
        "external_annotations": annotations,
        "allocator_settings": {"expandable_segments": False},
    }


def event(action: str, addr: int, size: int, time: int, frames: list) -> dict:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time, "frames": frames}


def segment(addr: int, total: int, blocks: list) -> dict:
    used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    kind = "small" if total == 2 * MIB else "large"
    return {
        "device": 0, "address": addr, "total_size": total, "stream": 0, "segment_type": kind, "segment_pool_id": (0, 0),
        "is_expandable": False, "allocated_size": used, "active_size": used, "requested_size": used, "blocks": blocks,
        "frames": [],
    }  # fmt: skip


def block(addr: int, size: int, state: str, frames: list) -> dict:
    return {"address": addr, "size": size, "requested_size": size, "state": state, "frames": frames}


def blocks(count: int) -> dict:
    """Segments of 2 MiB, cut into blocks of 16 KiB; then 10,000 times one of these is freed and allocated again."""
    each = 2 * MIB // 16384
    trace, segments, time = [], [], 1_780_000_000_000_000
    for number in range(0, count, each):
        base = BASE + number // each * 2 * MIB
        trace.append(event("segment_alloc", base, 2 * MIB, time, []))
        parts = []
        for at in range(each):
            time += 1
            frames = FRAMES[(number + at) % 3]
            trace.append(event("alloc", base + at * 16384, 16384, time, frames))
            parts.append(block(base + at * 16384, 16384, "active_allocated", frames))
        segments.append(segment(base, 2 * MIB, parts))
    for turn in range(10_000):
        addr = BASE + (turn * 7919 % count) * 16384
        time += 1
        trace.append(event("free_requested", addr, 16384, time, FRAMES[0]))
        trace.append(event("free_completed", addr, 16384, time, FRAMES[0]))
        trace.append(event("alloc", addr, 16384, time + 1, FRAMES[turn % 3]))
        segments[turn * 7919 % count // each]["blocks"][turn * 7919 % count % each]["frames"] = FRAMES[turn % 3]
    return snapshot(segments, trace, [])


def rank(number: int, epochs: int) -> dict:
    """Each step allocates and frees a block; every 97th rank also keeps one more per epoch."""
    trace, annotations, kept, time = [], [], [], 1_780_000_000_000_000
    base = BASE + number * (1 << 30)
    trace.append(event("segment_alloc", base, 64 * MIB, time, []))
    for epoch in range(epochs):
        annotations.append({"name": f"epoch#{epoch}", "stage": "START", "device": 0, "time_us": time + 1})
        for step in range(2):
            time += 1000
            trace.append(event("alloc", base, 8 * MIB, time, FRAMES[0]))
            trace.append(event("free_requested", base, 8 * MIB, time + 100, FRAMES[0]))
            trace.append(event("free_completed", base, 8 * MIB, time + 100, FRAMES[0]))
        if number % 97 == 5:
            addr = base + (8 + 2 * len(kept)) * MIB
            trace.append(event("alloc", addr, 2 * MIB, time + 200, FRAMES[2]))
            kept.append(block(addr, 2 * MIB, "active_allocated", FRAMES[2]))
        annotations.append({"name": f"epoch#{epoch}", "stage": "END", "device": 0, "time_us": time + 300})
        time += 400
    end = 8 * MIB + len(kept) * 2 * MIB
    parts = [block(base, 8 * MIB, "inactive", []), *kept, block(base + end, 64 * MIB - end, "inactive", [])]
    return snapshot([segment(base, 64 * MIB, parts)], trace, annotations)


def main() -> None:
    match sys.argv[1:]:
        case ["blocks", count, out]:
            pathlib.Path(out).write_bytes(pickle.dumps(blocks(int(count)), protocol=4))
        case ["ranks", count, epochs, out]:
            folder = pathlib.Path(out)
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(int(count)):
                (folder / f"rank{number}.pickle").write_bytes(pickle.dumps(rank(number, int(epochs)), protocol=4))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
