"""Fifteen short trainings, seven that leak and eight that do not, for `traceml.py`: `python leak_cases.py NAME`.

Each is the same small network in a plain loop with one thing added: 0.3 to 1.7 GiB over 400 steps, leaked or cached.
What leaks and what does not is in CASES.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import importlib.util
import random
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.backends.cudnn.enabled = False
traceml = importlib.import_module("traceml_ai") if importlib.util.find_spec("traceml_ai") else None
if traceml:
    traceml.init(mode="auto")
EPOCHS, STEPS, BATCH = 10, 40, 256
MIB = 1 << 18  # elements


def watched_step(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """What TraceML's documentation asks of a plain loop; nothing where it is not installed."""
    return traceml.trace_step(model) if traceml else contextlib.nullcontext()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU())
        self.head = nn.Linear(2048, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Training:
    """The loop, with places where a case puts something in."""

    def __init__(self) -> None:
        self.model = Net().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        data = TensorDataset(torch.zeros(BATCH * STEPS, 256), torch.zeros(BATCH * STEPS, dtype=torch.long))
        self.loader = DataLoader(data, batch_size=BATCH)
        self.held_out = DataLoader(TensorDataset(*data[: BATCH * 8]), batch_size=BATCH)
        self.rng = random.Random(3)
        self.count = 0

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        pass

    def after_epoch(self, epoch: int) -> None:
        pass

    def run(self) -> None:
        for epoch in range(EPOCHS):
            self.model.train()
            for x, y in self.loader:
                x, y = x.cuda(), y.cuda()
                with watched_step(self.model):
                    loss = self.step(x, y)
                    self.after_step(epoch, x, loss)
                self.count += 1
            self.after_epoch(epoch)


class Clean(Training):
    pass


class TensorList(Training):
    """Features are appended to a list."""

    kept: list[torch.Tensor]

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.kept = [*getattr(self, "kept", []), torch.empty(4 * MIB, device="cuda")]


class SparseList(Training):
    """Features are appended once in twenty steps."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        if self.count % 20 == 0:
            self.kept = [*getattr(self, "kept", []), torch.empty(32 * MIB, device="cuda")]


class LossGraph(Training):
    """An auxiliary loss is added up over all steps, graph and all."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.total = getattr(self, "total", 0) + self.model(x).square().mean()


class EvalGraph(Training):
    """Evaluation runs with gradients on, and its losses are kept."""

    def after_epoch(self, epoch: int) -> None:
        self.model.eval()
        self.losses = getattr(self, "losses", [])
        for x, y in self.held_out:
            self.losses.append(F.cross_entropy(self.model(x.cuda()), y.cuda()))


class HookList(Training):
    """A forward hook keeps the activations of one layer."""

    def run(self) -> None:
        kept: list[torch.Tensor] = []
        self.model.body[1].register_forward_hook(lambda _module, _in, out: kept.append(out.detach()))
        super().run()


class Concatenated(Training):
    """A tensor is replaced by a longer one at every step."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        seen = getattr(self, "seen", torch.empty(0, device="cuda"))
        self.seen = torch.cat([seen, torch.empty(4 * MIB, device="cuda")])


class OptimizerKept(Training):
    """Each epoch makes a new optimizer; a list of schedulers keeps the old ones."""

    def after_epoch(self, epoch: int) -> None:
        self.schedulers = [*getattr(self, "schedulers", []), torch.optim.lr_scheduler.StepLR(self.optimizer, 1)]
        self.optimizer = torch.optim.AdamW(self.model.parameters())


class CacheFills(Training):
    """A cache with 150 keys, met in turn, then full."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        cache = self.__dict__.setdefault("cache", {})
        cache.setdefault(self.count % 150, torch.empty(8 * MIB, device="cuda"))


class CacheAtRandom(Training):
    """A cache with 60 keys, met at random."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        cache = self.__dict__.setdefault("cache", {})
        key = self.rng.randrange(60)
        if key not in cache:
            cache[key] = torch.empty(16 * MIB, device="cuda")


class AverageAppears(Training):
    """A copy of the weights appears at epoch 4."""

    def after_epoch(self, epoch: int) -> None:
        if epoch == 4:
            self.average = [p.detach().clone() for p in self.model.parameters()]


class Curriculum(Training):
    """Batches grow from epoch to epoch."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        F.cross_entropy(self.model(x.repeat(4 * (epoch + 1), 1)), torch.zeros(
            BATCH * 4 * (epoch + 1), dtype=torch.long, device="cuda")).backward()  # fmt: skip


class LastFew(Training):
    """The last hundred features, the oldest makes room."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.__dict__.setdefault("recent", collections.deque(maxlen=100)).append(torch.empty(8 * MIB, device="cuda"))


class Periodic(Training):
    """Predictions of an epoch are collected and cleared."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.__dict__.setdefault("outputs", []).append(torch.empty(8 * MIB, device="cuda"))

    def after_epoch(self, epoch: int) -> None:
        self.__dict__["outputs"].clear()


class RandomSizes(Training):
    """A batch of any size is held until the next one comes."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.held = torch.empty(self.rng.randrange(1, 200) * MIB, device="cuda")


# What each is, and whether it leaks.
CASES: dict[str, tuple[Callable[[], Training], bool]] = {
    "clean": (Clean, False),
    "tensor list, 1 a step": (TensorList, True),
    "tensor list, 1 in 20": (SparseList, True),
    "graph kept by a loss": (LossGraph, True),
    "graph of an evaluation": (EvalGraph, True),
    "hook keeps activations": (HookList, True),
    "replaced by a longer one": (Concatenated, True),
    "old optimizers kept": (OptimizerKept, True),
    "cache that fills": (CacheFills, False),
    "cache, random keys": (CacheAtRandom, False),
    "average appears once": (AverageAppears, False),
    "curriculum": (Curriculum, False),
    "last hundred": (LastFew, False),
    "cleared every epoch": (Periodic, False),
    "random sizes": (RandomSizes, False),
}

if __name__ == "__main__":
    torch.manual_seed(1)
    CASES[sys.argv[1]][0]().run()
