"""Short trainings and servers, some that leak and some that do not, for `traceml.py`: `python leak_cases.py NAME`.

Each training is the same small network in a plain loop with one addition: 0.3 to 1.7 GiB over 400 steps, leaked or
cached; one has a single epoch of 4,000 steps. The servers answer requests of any length with the same network. CASES
states which programs leak. MEMCTL_RIVAL names the additional tool, if any: traceml or stormlog.
(Over 400 lines: each case is an independent program.)
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import os
import pathlib
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.backends.cudnn.enabled = False
EPOCHS, STEPS, BATCH = 10, 40, 256
MIB = 1 << 18  # elements


class Watch:
    """No additional tool."""

    def step(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def end(self) -> None:
        pass


class TraceMl(Watch):
    """TraceML, as its documentation describes it for a plain loop."""

    def __init__(self) -> None:
        self.tool: Any = importlib.import_module("traceml_ai")
        self.tool.init(mode="auto")

    def step(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        return self.tool.trace_step(model)


class Stormlog(Watch):
    """All of stormlog's leak detection: each step is profiled, and the process is tracked to a sink.

    At the end its analyzer's patterns and insights go to `stormlog.json`; the sink is for `stormlog query issues`.
    """

    def __init__(self) -> None:
        tool: Any = importlib.import_module("stormlog")
        sink: Any = importlib.import_module("stormlog.telemetry_sink")
        self.analyzer: Any = importlib.import_module("stormlog.analyzer")
        self.profiler = tool.GPUMemoryProfiler()
        config = sink.TelemetrySinkConfig(pathlib.Path("sink"))
        self.tracker = tool.MemoryTracker(sampling_interval=0.05, telemetry_sink_config=config)
        self.tracker.start_tracking()

    def step(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        return self.profiler.profile_context("train_step")

    def end(self) -> None:
        self.tracker.stop_tracking()
        analyzer = self.analyzer.MemoryAnalyzer(self.profiler)
        found = {
            "patterns": [vars(pattern) for pattern in analyzer.analyze_memory_patterns()],
            "insights": [vars(insight) for insight in analyzer.generate_performance_insights()],
        }
        with open("stormlog.json", "w") as file:
            json.dump(found, file, default=str)


def watcher() -> Watch:
    return {"traceml": TraceMl, "stormlog": Stormlog}.get(os.environ.get("MEMCTL_RIVAL", ""), Watch)()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU())
        self.head = nn.Linear(2048, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Training:
    """The loop, with hooks for a case's addition."""

    def __init__(self) -> None:
        self.model = Net().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        data = TensorDataset(torch.zeros(BATCH * STEPS, 256), torch.zeros(BATCH * STEPS, dtype=torch.long))
        self.loader = DataLoader(data, batch_size=BATCH)
        self.held_out = DataLoader(TensorDataset(*data[: BATCH * 8]), batch_size=BATCH)
        self.rng = random.Random(3)
        self.count = 0
        self.watch = watcher()

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
                with self.watch.step(self.model):
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
    """A cache with 150 keys, used in order until it is full."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        cache = self.__dict__.setdefault("cache", {})
        cache.setdefault(self.count % 150, torch.empty(8 * MIB, device="cuda"))


class CacheAtRandom(Training):
    """A cache with 60 keys, used at random."""

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
    """The last hundred features; the oldest is removed."""

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


class HooksPileUp(Training):
    """Each epoch registers the hook again; every one of them keeps a copy of one layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.after_epoch(-1)

    def remember(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self.kept.append(output.detach()[:64].clone())

    def after_epoch(self, epoch: int) -> None:
        self.model.body[3].register_forward_hook(self.remember)


class History(Training):
    """The losses of all steps in one tensor, concatenated again at each of them."""

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        seen = getattr(self, "seen", torch.empty(0, device="cuda"))
        self.seen = torch.cat([seen, torch.empty(16_384, device="cuda")])


class ExceptionsKept(Training):
    """Every tenth step also fails on a second batch; the exceptions are kept for a report."""

    def fail(self, x: torch.Tensor) -> None:
        scores = self.model.body(x.repeat(2, 1))
        raise ValueError(f"no targets for {len(scores)} samples")

    def after_step(self, epoch: int, x: torch.Tensor, loss: torch.Tensor) -> None:
        if self.count % 10 == 0:
            try:
                self.fail(x)
            except ValueError as error:
                self.errors = [*getattr(self, "errors", []), error]


class Pretraining(Training):
    """One epoch of 4,000 steps; every two hundredth step evaluates and keeps the outputs."""

    KEPT = True

    def run(self) -> None:
        x, y = torch.zeros(BATCH, 256, device="cuda"), torch.zeros(BATCH, dtype=torch.long, device="cuda")
        for count in range(4_000):
            with self.watch.step(self.model):
                self.step(x, y)
                if count % 200 == 199:
                    self.evaluate(x)

    def evaluate(self, x: torch.Tensor) -> None:
        with torch.no_grad():
            features = [self.model.body(x) for _ in range(8)]
        if self.KEPT:
            self.features = [*getattr(self, "features", []), *features]


class CleanPretraining(Pretraining):
    KEPT = False


class Server:
    """Answers requests of any length for twenty seconds, each a key-value cache that grows with every token."""

    LAYERS, WIDTH, SECONDS = 4, 512, 20.0

    def __init__(self) -> None:
        self.watch = watcher()
        self.model = nn.ModuleList(nn.Linear(self.WIDTH, self.WIDTH) for _ in range(self.LAYERS)).cuda()
        self.rng = random.Random(3)
        self.cache: collections.OrderedDict[int, list[torch.Tensor]] = collections.OrderedDict()
        self.count = 0

    def generate(self, length: int, tokens: int) -> list[torch.Tensor]:
        caches = [torch.empty(length, 2 * self.WIDTH, device="cuda") for _ in range(self.LAYERS)]
        x = torch.zeros(1, self.WIDTH, device="cuda")
        for _ in range(tokens):
            for layer, module in enumerate(self.model):
                x = torch.relu(module(x))
                caches[layer] = torch.cat([caches[layer], torch.cat([x, x], dim=1)])
        return caches

    def answered(self, caches: list[torch.Tensor]) -> None:
        pass

    def run(self) -> None:
        end = time.monotonic() + self.SECONDS
        with torch.no_grad():
            while time.monotonic() < end:
                with self.watch.step(self.model):
                    self.answered(self.generate(self.rng.randrange(16, 512), self.rng.randrange(4, 24)))
                self.count += 1
                time.sleep(0.02)  # until the next request comes


class KvKept(Server):
    """The caches of all requests are kept, for conversations that never come back."""

    def answered(self, caches: list[torch.Tensor]) -> None:
        self.cache[self.count] = caches


class PrefixCache(Server):
    """The caches of the last fifty requests are kept."""

    def answered(self, caches: list[torch.Tensor]) -> None:
        self.cache[self.count] = caches
        if len(self.cache) > 50:
            self.cache.popitem(last=False)


class PoolPerLength(Server):
    """Each new length gets a memory pool of its own, as a captured graph would."""

    def generate(self, length: int, tokens: int) -> list[torch.Tensor]:
        pools = self.__dict__.setdefault("pools", {})
        if length not in pools:
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                pools[length] = (pool, torch.empty(length, 2 * self.WIDTH, device="cuda"))
        return super().generate(length, tokens)


# The class of each case, and whether it leaks.
CASES: dict[str, tuple[Callable[[], Training | Server], bool]] = {
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
    "hooks pile up": (HooksPileUp, True),
    "history concatenated": (History, True),
    "exceptions kept": (ExceptionsKept, True),
    "one epoch, evaluation kept": (Pretraining, True),
    "one epoch, clean": (CleanPretraining, False),
    "server, key-value caches kept": (KvKept, True),
    "server, pool for each length": (PoolPerLength, True),
    "server, prefix cache": (PrefixCache, False),
    "server, clean": (Server, False),
}

if __name__ == "__main__":
    torch.manual_seed(1)
    case = CASES[sys.argv[1]][0]()
    case.run()
    case.watch.end()
