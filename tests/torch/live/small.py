"""The small training that the fault tests disturb: imported by their scripts, never by a test.

What it prints on stdout is the training's result, which has to be the same with and without memctl: losses, a digest of
everything that came back to the host, and the allocator's own counts, which show any allocation that the training did
not make. memctl's own output goes to stderr.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import sys
import time
from typing import Any, Optional

import torch

torch.backends.cudnn.enabled = False
# A test that waits longer than this for its script, or a script for its test, has failed.
LIMIT_S = 240.0


def attach_if_wanted(job: Optional[str] = None) -> None:
    """Attaches with one line in the script; under the launcher it is not needed."""
    if job or "ATTACH" in os.environ:
        import memctl_agent

        memctl_agent.attach(job or os.environ["ATTACH"])


def status() -> dict[str, Any]:
    """memctl's own status, if it is loaded."""
    agent = sys.modules.get("memctl_agent")
    return agent.status() if agent is not None else {}


def tell(name: str, what: object) -> None:
    """Prints a value for the test, on stderr."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"TELL {name} {json.dumps(what)}\n")
        sys.stderr.flush()


def pause(name: str) -> None:
    """Waits until the test ends the pause; without a test, returns at once."""
    folder = os.environ.get("PAUSES")
    if not folder:
        return
    mine = f"{name}{os.environ.get('RANK', '')}"
    pathlib.Path(folder, f"{mine}.there").touch()
    deadline = time.monotonic() + LIMIT_S
    while not pathlib.Path(folder, f"{name}.go").exists():
        assert time.monotonic() < deadline, f"nobody let {mine} go on"
        time.sleep(0.01)


class Training:
    """A model, its optimizer and the result of its training."""

    def __init__(self, device: str = "cuda", compiled: Optional[str] = None) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)]
        self.device = device
        self.model = torch.nn.Sequential(*layers).to(device)
        self.called = torch.compile(self.model, backend=compiled) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.digest = hashlib.sha256()
        self.kept: list[torch.Tensor] = []

    def see(self, tensor: torch.Tensor) -> None:
        """Adds a tensor's values to the result."""
        self.digest.update(repr(tensor.detach().cpu().tolist()).encode())

    def step(self, batch: Optional[torch.Tensor] = None) -> None:
        """One step."""
        batch = torch.randn(8, 32) if batch is None else batch
        self.optimizer.zero_grad()
        out = self.called(batch.to(self.device))
        loss = out.square().mean()
        loss.backward()
        self.optimizer.step()
        self.see(loss)
        self.see(out)

    def steps(self, count: int) -> None:
        """Some steps."""
        for _ in range(count):
            self.step()

    def leak(self, bytes_: int) -> None:
        """Retains memory permanently."""
        self.kept.append(torch.empty(bytes_, dtype=torch.uint8, device=self.device))

    def report(self) -> None:
        """Prints the result."""
        for parameter in self.model.parameters():
            self.see(parameter)
        stats = torch.cuda.memory_stats(self.device)
        names = ("allocation.all.allocated", "allocated_bytes.all.current", "reserved_bytes.all.peak", "num_ooms")
        line = " ".join(["result", self.digest.hexdigest(), *(str(stats.get(name)) for name in names)])
        # In one write, because unbuffered print writes word by word and other ranks print at the same time.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
