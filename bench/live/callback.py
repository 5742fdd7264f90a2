"""The cost of one callback of memctl's hook inside a training, by the time-stamp counter before and after each.

    python callback.py [--rounds 5] [--frames 20] [-o result.json]

Every round is a session: steps of the small transformer of `micro.py` (its model called under as many frames as reach
`frames` on average) without stacks, then steps with stacks. The hook is the one that memctl would compile for this
torch, except that it waits for loads and reads the counter before and after memctl's function. So the figures include
the reading, and the difference between both halves is the cost of a stack.

The counter continues when the machine interrupts the thread, so callbacks of more than 20 us are left out and counted.
The counted steps follow as many uncounted ones, which have new stacks and untouched memory. x86-64 only; needs a C++
compiler and no daemon.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from micro import Training, under

ALLOCATION = 0  # c10::cuda::CUDACachingAllocator::TraceEntry::ALLOC
# Steps that run before the counted ones, and counted ones: enough to pass through a ring once and to know every stack.
STEPS = 150
INTERRUPTED_NS = 20_000
ROOM = 1 << 20

CALL = "  on_event(&event);\n"
TIMED = """\
#include <x86intrin.h>
#include <atomic>
namespace {
struct Reading { uint32_t cycles; uint16_t action; uint16_t thread; };
Reading readings[%d];
std::atomic<uint32_t> taken{0};
std::atomic<uint16_t> threads{0};
uint64_t counter() { _mm_lfence(); const uint64_t read = __rdtsc(); _mm_lfence(); return read; }
template <typename Call, typename Of> void timed(Call call, const Of* of) {
  static thread_local const uint16_t thread = threads++;
  const uint64_t before = counter();
  call(of);
  const uint64_t cycles = counter() - before;
  const uint32_t at = taken.fetch_add(1, std::memory_order_relaxed);
  if (at < %d) readings[at] = {static_cast<uint32_t>(cycles), static_cast<uint16_t>(of->action), thread};
}
}
extern "C" __attribute__((visibility("default"))) void* bench_readings() { return readings; }
extern "C" __attribute__((visibility("default"))) uint32_t bench_take() { return taken.exchange(0); }
extern "C" __attribute__((visibility("default"))) uint64_t bench_counter() { return __rdtsc(); }
"""
BEFORE = "#define MEMCTL_SHIM_ABI"


class Steps(Training):
    """The training of `micro.py`, without its own clock."""

    def steps(self) -> float:
        for _ in range(STEPS):
            self.step()
        return 0.0

    def pass_once(self) -> float:
        self.forward()
        return 0.0


class Reading(ctypes.Structure):
    _fields_ = (("cycles", ctypes.c_uint32), ("action", ctypes.c_uint16), ("thread", ctypes.c_uint16))


def timed_source(source: str) -> str:
    """The hook's source with the readings inserted."""
    for text in (CALL, BEFORE):
        if source.count(text) != 1:
            sys.exit(f"the hook's source has changed: {text.strip()!r} is there {source.count(text)} times")
    with_call = source.replace(CALL, CALL.replace("on_event(&event)", "timed(on_event, &event)"))
    return with_call.replace(BEFORE, TIMED % (ROOM, ROOM) + BEFORE)


class Hook:
    """The timed hook."""

    def __init__(self, path: str) -> None:
        self.hook = ctypes.CDLL(path)
        self.hook.bench_readings.restype = ctypes.c_void_p
        self.hook.bench_take.restype = ctypes.c_uint32
        self.hook.bench_counter.restype = ctypes.c_uint64
        self.readings = (Reading * ROOM).from_address(self.hook.bench_readings())
        counted, begun = self.hook.bench_counter(), time.monotonic_ns()
        time.sleep(0.5)
        elapsed = time.monotonic_ns() - begun
        self.ns_a_cycle = elapsed / (self.hook.bench_counter() - counted)

    def take(self) -> list[tuple[float, int, int]]:
        """Nanoseconds, action and thread of every callback since the last call."""
        count = self.hook.bench_take()
        if count > ROOM:
            sys.exit(f"{count} callbacks a round, room for {ROOM}")
        return [(each.cycles * self.ns_a_cycle, each.action, each.thread) for each in self.readings[:count]]


def mean_depth(body: Callable[[], object]) -> float:
    """Frames under which the body calls functions of C, on average, without those of this function."""
    depths: list[int] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and str(getattr(called, "__module__", "")).startswith("torch"):
            depth, each = 0, frame
            while each is not None:
                depth, each = depth + 1, each.f_back
            depths.append(depth)

    sys.setprofile(profile)
    try:
        body()
    finally:
        sys.setprofile(None)
    return statistics.mean(depths)


def summarized(name: str, taken: list[tuple[float, int, int]]) -> dict[str, dict[str, float]]:
    """Mean and median of allocations on the main thread and on autograd's."""
    rows: dict[str, dict[str, float]] = {}
    for where, main in (("Python", True), ("autograd", False)):
        every = [ns for ns, action, thread in taken if action == ALLOCATION and (thread == 0) == main]
        kept = sorted(ns for ns in every if ns < INTERRUPTED_NS)
        if not kept:
            continue
        rows[where] = {
            "callbacks": len(kept),
            "interrupted": len(every) - len(kept),
            "mean": statistics.mean(kept),
            "median": statistics.median(kept),
            "p99": kept[len(kept) * 99 // 100],
        }
        row = rows[where]
        print(
            f"{name:6} {where:8} {row['callbacks']:9,} {row['interrupted']:6} "
            f"{row['mean']:8.0f} {row['median']:8.0f} {row['p99']:8.0f}"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()

    import torch

    from memctl_agent import _native, _shim

    torch.cuda.init()
    training = Steps()
    bare = mean_depth(training.forward)
    extra = max(1, round(asked.frames - bare) + 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shim.so"
        _shim.compile_shim(torch, timed_source(_native.shim_source()), path)
        devices = [(0, None, "GPU", None)]
        taken: dict[str, list[tuple[float, int, int]]] = {"events": [], "stacks": []}
        status: dict[str, object] = {}
        hook = Hook(str(path))
        for _ in range(asked.rounds):
            _native.start(job="callback", framework="torch", conf="", devices=devices, daemon="http://127.0.0.1:9")
            _native.attach_hook(str(path), 0, _shim.build_of(torch))
            for way, every in taken.items():
                if way == "stacks" and not _native.check_stacks():
                    sys.exit("stacks are not recorded here: this Python's frames are laid out otherwise")
                under(extra, training.steps)
                hook.take()
                under(extra, training.steps)
                every.extend(hook.take())
            status = _native.status()
            _native.stop("", 0.0)

    print(
        f"Python {sys.version.split()[0]}, torch {torch.__version__}, {hook.ns_a_cycle:.3f} ns a cycle, "
        f"{mean_depth(lambda: under(extra, training.pass_once)):.1f} frames"
    )
    print("way    thread   callbacks  left out  mean   median     p99 (ns)")
    rows = {way: summarized(way, every) for way, every in taken.items()}
    for where in rows["stacks"]:
        more = {each: rows["stacks"][where][each] - rows["events"][where][each] for each in ("mean", "median")}
        print(f"a stack, {where}: {more['mean']:.0f} ns on average, median {more['median']:.0f} ns")
    print(f"the last session: {status['produced']} events, {status['stacks']} stacks, {status['dropped']} dropped")
    if asked.output:
        asked.output.write_text(json.dumps({"ns": rows, "status": status}, indent=1, default=str))


if __name__ == "__main__":
    main()
