"""Computes a test's or a cell's figures from PyTorch's list of allocator events: the peak, what is live, their lines.

Its own memory is the blocks that were allocated since its body began and are not freed yet. A block counts with
the bytes that were requested, rounded up to the allocator's unit of 512 bytes. That does not depend on what other tests
left in the allocator's cache: `torch.cuda.memory_allocated()` may count up to 1 MiB more for a large block whose rest
was too small to be split off.
Guarantees: every figure follows from the events alone. The bytes of the lines at the peak sum up to the peak.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

# The allocator's unit: every request is rounded up to a multiple of it.
UNIT = 512

# Parts of paths of files that are not the user's own code.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3.")
# How IPython names the code of a cell in a terminal. A kernel names a file.
CELL = "<ipython-input-"

# File, line and function; None if no Python function was running, as in autograd's threads.
Site = Optional[tuple[str, int, str]]
# Device and address.
Key = tuple[int, int]


def _torch_folder() -> str:
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return os.path.dirname(file) + os.sep if file else "\0"


def rounded(bytes_: int) -> int:
    """The bytes with which a request counts."""
    return max(UNIT, -(-bytes_ // UNIT) * UNIT)


def site_of(frames: Sequence[dict[str, Any]]) -> Site:
    """The frame that names an allocation, among frames that are ordered innermost first.

    It is the innermost frame of the user's own code, else of a library other than torch, else the innermost one.
    """
    library: Site = None
    torch = _torch_folder()
    for frame in frames:
        file = frame["filename"]
        if file.startswith(torch) or (file.startswith("<") and not file.startswith(CELL)):
            continue
        site = (file, int(frame["line"]), frame["name"])
        if not any(part in file for part in _LIBRARIES):
            return site
        # (The standard library is none: `contextlib` and others only call.)
        if library is None and "-packages/" in file:
            library = site
    if library is None and frames:
        frame = frames[0]
        return frame["filename"], int(frame["line"]), frame["name"]
    return library


def label(site: Site, root: str) -> str:
    """A site for people, `tests/test_a.py:12 in test_x`, relative to the tests' root folder."""
    if site is None:
        return "no Python line (a thread of autograd, or C++)"
    file, line, name = site
    if root and file.startswith(root + os.sep):
        file = file[len(root) + 1 :]
    # (A file's name may have bytes that are not UTF-8, which could not be printed or sent.)
    return f"{file}:{line} in {name}".encode("utf-8", "replace").decode("utf-8")


@dataclass
class Line:
    """The blocks of one site."""

    site: Site
    bytes_: int = 0
    blocks: int = 0


def lines_of(blocks: Iterable[tuple[int, Site]]) -> list[Line]:
    """Blocks (bytes and site) summed up by site, those with the most bytes first."""
    found: dict[Site, Line] = {}
    for bytes_, site in blocks:
        line = found.setdefault(site, Line(site))
        line.bytes_ += bytes_
        line.blocks += 1
    return sorted(found.values(), key=lambda line: (-line.bytes_, str(line.site)))


@dataclass
class Usage:
    """A test's own memory. The peak is that of the sum of all devices; each device also has its own."""

    peak: int = 0
    peaks: dict[int, int] = field(default_factory=dict)
    allocated: int = 0
    at_peak: list[Line] = field(default_factory=list)
    live: dict[Key, tuple[int, Site]] = field(default_factory=dict)
    events: int = 0


def counts(traces: Sequence[Sequence[Any]]) -> list[int]:
    """How many events each device has."""
    return [len(trace) for trace in traces]


def usage(
    traces: Sequence[Sequence[dict[str, Any]]],
    since: Sequence[int] = (),
    until: Sequence[int] = (),
    site: Callable[[Sequence[dict[str, Any]]], Any] = site_of,
) -> Usage:
    """The usage according to the events of each device.

    `since` and `until` are numbers of events for each device: the peak is looked for from `since` on, and events after
    `until` only free. `site` makes the site of a block from its frames.
    """
    steps = list(_steps(traces, since, until))
    found = Usage(events=sum(map(len, traces)))
    live: dict[Key, int] = {}
    now: dict[int, int] = {}
    total, best = 0, -1
    for at, (counts_peak, key, bytes_, _) in enumerate(steps):
        change = (bytes_ or 0) - live.pop(key, 0)
        if bytes_ is not None:
            live[key] = bytes_
        total += change
        now[key[0]] = level = now.get(key[0], 0) + change
        if counts_peak:
            if total > found.peak:
                found.peak, best = total, at
            found.peaks[key[0]] = max(level, found.peaks.get(key[0], 0))
    found.allocated = total
    found.live = _live(steps, site)
    found.at_peak = lines_of(_live(steps[: best + 1], site).values())
    return found


def rise(traces: Sequence[Sequence[dict[str, Any]]]) -> int:
    """How far the level of all devices rose above the level before the first event. Blocks from before count when they
    are freed."""
    level = most = 0
    for _, _, _, event in _merged(traces, [0] * len(traces)):
        if event["action"] == "alloc":
            level += rounded(event["size"])
            most = max(most, level)
        elif event["action"] == "free_requested":
            level -= rounded(event["size"])
    return most


# Whether it counts for the peak, the block, the bytes (None when it is freed), and the event.
_Step = tuple[bool, Key, Optional[int], dict[str, Any]]


def _steps(traces: Sequence[Sequence[dict[str, Any]]], since: Sequence[int], until: Sequence[int]) -> Iterator[_Step]:
    """Allocations and frees of all devices. What was allocated before `since` counts at once, because it is the level
    from which the peak is looked for."""
    before = [trace[: since[device] if device < len(since) else 0] for device, trace in enumerate(traces)]
    alive: dict[Key, dict[str, Any]] = {}
    for device, trace in enumerate(before):
        for event in trace:
            if event["action"] == "alloc":
                alive[device, event["addr"]] = event
            elif event["action"] == "free_requested":
                alive.pop((device, event["addr"]), None)
    for key, event in alive.items():
        yield True, key, rounded(event["size"]), event
    for _, device, number, event in _merged(traces, [len(trace) for trace in before]):
        is_within = device >= len(until) or number < until[device]
        if event["action"] == "alloc":
            if is_within:
                yield True, (device, event["addr"]), rounded(event["size"]), event
        elif event["action"] == "free_requested":
            yield is_within, (device, event["addr"]), None, event


def _merged(
    traces: Sequence[Sequence[dict[str, Any]]], first: Sequence[int]
) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """The events of all devices in their order, from each device's first number on."""
    rest = [_numbered(device, trace, first[device]) for device, trace in enumerate(traces)]
    return heapq.merge(*rest, key=lambda entry: entry[0])


def _numbered(device: int, trace: Sequence[Any], first: int) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    for number in range(first, len(trace)):
        yield trace[number].get("time_us", 0), device, number, trace[number]


def _live(steps: Iterable[_Step], site: Callable[[Sequence[dict[str, Any]]], Any]) -> dict[Key, tuple[int, Any]]:
    alive: dict[Key, tuple[int, dict[str, Any]]] = {}
    for _, key, bytes_, event in steps:
        alive.pop(key, None)
        if bytes_ is not None:
            alive[key] = bytes_, event
    return {key: (bytes_, site(event.get("frames") or ())) for key, (bytes_, event) in alive.items()}


def blocks_of(segments: Iterable[dict[str, Any]]) -> dict[Key, tuple[int, int, Site]]:
    """The allocated blocks of all devices: the bytes with which they count, their size, and their site if it is
    known."""
    found: dict[Key, tuple[int, int, Site]] = {}
    for segment in segments:
        addr = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                bytes_ = rounded(block.get("requested_size") or block["size"])
                found[segment["device"], addr] = bytes_, block["size"], site_of(block.get("frames") or ())
            addr += block["size"]
    return found
