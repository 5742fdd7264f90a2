"""The figures of a test whose body runs several times: the peak over all runs, and what all of them left.

The history forgets a run's events when the next run begins, because their number is limited. What is kept of the
earlier runs is the largest peak, and the blocks that are still allocated. These blocks count in the next run from its
beginning.
Guarantees: with one run, the figures are those of its events. A block whose end the history missed between two runs
does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memctl_agent._usage import _trace
from memctl_agent._usage._trace import Key, Site, Usage


class Runs:
    """The runs of one test. `found` is always a reading of the history, with the events of the present run."""

    def __init__(self) -> None:
        self._earlier: dict[Key, tuple[int, Site]] = {}
        self._highest = Usage()

    def usage(self, found: dict[str, Any]) -> Usage:
        """The usage of all runs until now."""
        blocks = self._blocks(found)
        used = _trace.usage(_joined(blocks, found["device_traces"]), _trace.counts(blocks))
        highest = self._highest
        for device, peak in highest.peaks.items():
            used.peaks[device] = max(peak, used.peaks.get(device, 0))
        if highest.peak >= used.peak:
            used.peak, used.at_peak = highest.peak, highest.at_peak
        return used

    def next(self, found: dict[str, Any]) -> None:
        """The present run is over. The history forgets its events after this reading."""
        self._highest = self.usage(found)
        self._earlier = self._highest.live

    def left(self, found: dict[str, Any], until: Sequence[int]) -> Usage:
        """What is still allocated of all runs. `until` is the number of the last run's events, for each device."""
        blocks = self._blocks(found)
        ends = [len(block) + end for block, end in zip(blocks, until)]
        return _trace.usage(_joined(blocks, found["device_traces"]), until=ends)

    def _blocks(self, found: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """The blocks of earlier runs that the present run found allocated, for each device, as allocations."""
        blocks: list[list[dict[str, Any]]] = [[] for _ in found["device_traces"]]
        if not self._earlier:
            return blocks
        first: dict[Key, str] = {}
        for device, trace in enumerate(found["device_traces"]):
            for event in trace:
                if event["action"] in ("alloc", "free_requested"):
                    first.setdefault((device, event["addr"]), event["action"])
        now = _allocated(found["segments"])
        for key, (bytes_, site) in self._earlier.items():
            # (A free is missed between the reading and the new beginning: another thread frees, or the garbage
            # collector runs while the reading is made.)
            if first[key] == "free_requested" if key in first else key in now:
                blocks[key[0]].append({"action": "alloc", "addr": key[1], "size": bytes_, "frames": _frames(site)})
        return blocks


def _allocated(segments: Iterable[dict[str, Any]]) -> set[Key]:
    """The blocks that are allocated now."""
    found = set()
    for segment in segments:
        addr = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found.add((segment["device"], addr))
            addr += block["size"]
    return found


def _frames(site: Site) -> list[dict[str, Any]]:
    """Frames from which `_trace.site_of` makes this site."""
    return [] if site is None else [{"filename": site[0], "line": site[1], "name": site[2]}]


def _joined(
    blocks: Sequence[list[dict[str, Any]]], traces: Sequence[Sequence[dict[str, Any]]]
) -> list[Sequence[dict[str, Any]]]:
    return [[*block, *trace] if block else trace for block, trace in zip(blocks, traces)]
