#!/usr/bin/env python3
"""Makes a memory snapshot of any size out of a recorded one, for measurements of viewers (`beside.mjs`).

    snapshots.py SNAPSHOT.pickle BYTES OUT.pickle

Behind the recorded events come the same requests again and again: those whose block was freed within the recording and has its
place in the last state, so that each round leaves the state as it found it. Times go on. SNAPSHOT is what
`memctl export --format memory-viz` or PyTorch wrote, of one device.
"""

import bisect
import pickle
import sys


def rounds(trace: list, segments: list) -> list:
    """The events of one round, in their order."""
    held = sorted((s["address"], s["address"] + s["total_size"]) for s in segments)
    live = sorted(
        (b["address"], b["address"] + b["size"])
        for s in segments
        for b in s["blocks"]
        if b["state"] != "inactive"
    )

    def has_room(addr: int, size: int) -> bool:
        at = bisect.bisect(held, (addr, 1 << 62)) - 1
        if at < 0 or not held[at][0] <= addr <= held[at][1] - size:
            return False
        at = bisect.bisect(live, (addr, 1 << 62)) - 1
        is_free_before = at < 0 or live[at][1] <= addr
        return is_free_before and (at + 1 == len(live) or live[at + 1][0] >= addr + size)

    kept, open_at = set(), {}
    for number, event in enumerate(trace):
        if event["action"] == "alloc":
            open_at[event["addr"]] = [number]
        elif event["action"] in ("free_requested", "free_completed") and event["addr"] in open_at:
            open_at[event["addr"]].append(number)
            if event["action"] == "free_completed":
                numbers = open_at.pop(event["addr"])
                if len(numbers) == 3 and has_room(event["addr"], trace[numbers[0]]["size"]):
                    kept.update(numbers)
    return [event for number, event in enumerate(trace) if number in kept]


def main() -> None:
    source, size, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(source, "rb") as file:
        snapshot = pickle.load(file)  # noqa: S301 (one's own recording)
    device = max(range(len(snapshot["device_traces"])), key=lambda at: len(snapshot["device_traces"][at]))
    trace = snapshot["device_traces"][device]
    segments = [s for s in snapshot["segments"] if s["device"] == device]
    again = rounds(trace, segments)
    length = trace[-1]["time_us"] - trace[0]["time_us"] + 1
    # (Pickles share strings and stacks: what a round takes is told by the second one.)
    pair = [dict(event) for event in again + again]
    once = len(pickle.dumps(pair)) - len(pickle.dumps(pair[: len(again)]))
    turns = max(1, size // max(once, 1))
    for turn in range(1, turns + 1):
        trace.extend({**event, "time_us": event["time_us"] + turn * length} for event in again)
    with open(out, "wb") as file:
        pickle.dump(snapshot, file)
    print(f"{len(trace)} events, {len(again)} of them a round, {turns} rounds")


if __name__ == "__main__":
    main()
