#!/usr/bin/env python3
"""Makes a memory snapshot of any size out of a recorded one, for measurements of viewers (`beside.mjs`).

    snapshots.py SNAPSHOT.pickle BYTES OUT.pickle

The output has the recorded events, and then rounds that repeat a part of them. A round has the requests and frees of
the blocks that were freed within the recording and whose addresses are free in the last state. So each round ends in
the state in which it began. Times increase. SNAPSHOT is the file of
one device that `memctl export --format memory-viz` or PyTorch wrote.
"""

import bisect
import pickle
import struct
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


def batches(of: list) -> list:
    return [of[at : at + 1000] for at in range(0, len(of), 1000)]


class Events:
    """Encodes values in pickle's protocol 2. The caller writes them in batches, so not all events are in memory."""

    def __init__(self, file) -> None:
        self.file, self.known = file, {}

    def shared(self, key, value) -> bytes:
        """A value that many events share: written once, then referred to by its number."""
        number = self.known.get(key)
        if number is not None:
            return b"j" + struct.pack("<I", number)
        self.known[key] = len(self.known)
        return value + b"r" + struct.pack("<I", self.known[key])

    def text(self, text: str) -> bytes:
        raw = text.encode()
        return self.shared(text, b"X" + struct.pack("<I", len(raw)) + raw)

    def whole(self, number: int) -> bytes:
        if 0 <= number < 1 << 31:
            return b"J" + struct.pack("<i", number)
        length = number.bit_length() // 8 + 1
        return b"\x8a" + bytes([length]) + number.to_bytes(length, "little", signed=True)

    def value(self, value) -> bytes:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return self.whole(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if value is None:
            return b"N"
        if isinstance(value, tuple):
            return b"(" + b"".join(self.value(one) for one in value) + b"t"
        if isinstance(value, list):
            body = b"](" + b"".join(self.value(one) for one in value) + b"e"
            return self.shared(id(value), body) if value else b"]"
        pairs = b"".join(self.text(key) + self.value(one) for key, one in value.items())
        return b"}(" + pairs + b"u"


def main() -> None:
    source, size, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(source, "rb") as file:
        snapshot = pickle.load(file)  # noqa: S301 (one's own recording)
    device = max(range(len(snapshot["device_traces"])), key=lambda at: len(snapshot["device_traces"][at]))
    trace = snapshot["device_traces"][device]
    again = rounds(trace, [s for s in snapshot["segments"] if s["device"] == device])
    length = trace[-1]["time_us"] - trace[0]["time_us"] + 1
    turn = 0
    with open(out, "wb") as file:
        events = Events(file)
        file.write(b"\x80\x02}(")
        for name, value in snapshot.items():
            file.write(events.text(name))
            if name != "device_traces":
                file.write(events.value(value))
                continue
            # (In batches, as pickle does: readers put each batch on a stack.)
            file.write(b"](" + b"]" * device + b"]")
            for few in batches(trace):
                file.write(b"(" + b"".join(map(events.value, few)) + b"e")
            # (Everything except the times is the same in each round.)
            name = events.text("time_us")
            same = [
                (b"}(" + b"".join(events.text(k) + events.value(v) for k, v in e.items() if k != "time_us"), e["time_us"])
                for e in again
            ]
            while file.tell() < size:
                turn += 1
                past = turn * length
                for few in batches(same):
                    file.write(b"(" + b"".join(part + name + events.whole(time + past) + b"u" for part, time in few) + b"e")
            file.write(b"e")
        file.write(b"u.")
    print(f"{len(trace) + turn * len(again)} events, {len(again)} of them a round, {turn} rounds")


if __name__ == "__main__":
    main()
