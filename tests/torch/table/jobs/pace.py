"""The clock of a job, and what PyTorch counts while it runs.

A job of 400 steps does the same work whether it takes 40 s or 12: `TABLE_SECONDS` says how long it wants to take, and
each step waits until it is due. On a busy machine a job takes longer; it never does less.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from typing import Any, Callable

import torch

SECONDS = float(os.environ.get("TABLE_SECONDS", "38"))
# How often a job prints PyTorch's counters.
PRINTS = 200


class Pace:
    """Spreads the steps over `TABLE_SECONDS`, and prints PyTorch's counters meanwhile."""

    def __init__(self, steps: int, name: str = "main") -> None:
        self._steps, self._name, self._done = steps, name, 0
        self._began = time.monotonic()
        self._print()

    def step(self) -> None:
        """Called after a step: waits until the next one is due."""
        self._done += 1
        if self._done * PRINTS // self._steps > (self._done - 1) * PRINTS // self._steps:
            self._print()
        due = self._began + self._done * SECONDS / self._steps
        time.sleep(max(0.0, due - time.monotonic()))

    def _print(self) -> None:
        counts = {
            "process": self._name,
            "pid": os.getpid(),
            "seconds": round(time.monotonic() - self._began, 3),
            "at": round(time.time(), 3),
            "done": self._done / self._steps,
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "host": host_bytes(),
        }
        # In one write: other processes of the job print as well.
        sys.stdout.write(json.dumps(counts) + "\n")
        sys.stdout.flush()


def host_bytes() -> int:
    """Host memory of this process, without the memory that backs the fake device."""
    pages = pathlib.Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def main(jobs: dict[str, Any]) -> None:
    """Runs the job that the command line names."""
    torch.manual_seed(0)
    torch.backends.cudnn.enabled = False
    job: Callable[[], None] = jobs[sys.argv[1]]
    job()
