"""Trainings drawn from a seed: one of six models, with a leak or with bounded growth. Used by `ahead.py`.

`Plan.of(seed, leaks)` is the plan of a seed, computed without torch; `Training(plan).run()` is the program. Its model
is one of `tests/workloads/fit_models.py`. Batches have one size, one of four, or any size; every second plan evaluates
at an epoch's end. Leaked tensors are the program's own (outputs, losses with their graph, gradients, an optimizer,
exceptions) or copies of them, at every step, every few, at random, or at an epoch's end. Bounded growth may be as fast:
a cache that becomes full, a queue of fixed length, a list cleared every epoch, averaged weights.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import random
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/workloads"))

MODELS = ("encoder", "lstm", "vgg", "unet", "vit", "mixer")
LEAKS = (
    "outputs kept", "losses with their graph", "copies of outputs", "hook keeps activations", "gradients kept",
    "exceptions kept", "history concatenated", "cache without an end", "evaluation kept", "optimizers kept",
    "hooks pile up",
)  # fmt: skip
BENIGN = ("nothing", "cache that fills", "queue", "cleared every epoch", "average appears", "last output held")
EPOCHS = 10


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a seed."""

    seed: int
    leaks: bool
    model: str
    cause: str
    sizes: tuple[int, ...]  # batch sizes; each step uses one at random
    steps: int  # an epoch
    evaluates: bool
    every: int  # steps between two times of the cause
    at_random: bool  # once in `every` steps at random, not at equal distances

    @staticmethod
    def of(seed: int, leaks: bool) -> Plan:
        chance = random.Random(f"{seed} {leaks}")
        largest = chance.choice((8, 12, 16, 24))
        sizes = chance.choice(((largest,), (largest,), tuple(range(largest // 4, largest + 1, largest // 4)),
                               tuple(range(1, largest + 1))))  # fmt: skip
        return Plan(
            seed=seed, leaks=leaks, model=chance.choice(MODELS), cause=chance.choice(LEAKS if leaks else BENIGN),
            sizes=sizes, steps=chance.randrange(12, 36), evaluates=chance.random() < 0.5,
            every=chance.choice((1, 1, 2, 5, 10)), at_random=chance.random() < 0.3,
        )  # fmt: skip


class Training:
    """The loop, as in `leak_cases.Training`."""

    def __init__(self, plan: Plan) -> None:
        import fit_models
        import torch

        torch.backends.cudnn.enabled = False
        self.torch, self.plan = torch, plan
        self.chance = random.Random(plan.seed)
        self.model = fit_models.MODELS[plan.model]().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        # Bounded growth reaches its bound in about the first quarter.
        self.bound = max(3, EPOCHS * plan.steps // plan.every // 4)
        self.kept: Any = collections.deque(maxlen=self.bound) if plan.cause == "queue" else []
        self.cache: dict[Any, Any] = {}
        self.output: Any = None
        # A fused kernel may use the weights of a subclass directly, so that its forward is never called.
        blocks = [module for module in self.model.modules() if type(module) in (torch.nn.Linear, torch.nn.Conv2d)]
        self.hooked = blocks[self.chance.randrange(len(blocks))]
        self.hooked.register_forward_hook(self.saw)
        if plan.cause == "hook keeps activations":
            self.hooked.register_forward_hook(self.keep_activation)

    def saw(self, _module: Any, _inputs: Any, output: Any) -> None:
        self.output = output

    def keep_activation(self, _module: Any, _inputs: Any, output: Any) -> None:
        if self.model.training:
            self.kept.append(output.detach())

    def keep_copy(self, _module: Any, _inputs: Any, output: Any) -> None:
        if self.model.training:
            self.kept.append(output.detach()[:1].clone())

    def step(self, count: int) -> None:
        loss = self.model.loss(self.chance.choice(self.plan.sizes))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        every = self.plan.every
        if self.chance.random() * every < 1 if self.plan.at_random else count % every == 0:
            self.cause(count, loss)
        self.output = None

    def fail(self) -> None:
        output = self.output.detach().clone()
        raise ValueError(f"{output.shape} was not expected")

    def cause(self, count: int, loss: Any) -> None:
        torch, cause, output = self.torch, self.plan.cause, self.output
        if cause == "outputs kept":
            self.kept.append(output.detach())
        elif cause == "losses with their graph":
            self.kept.append(output.float().square().mean())
        elif cause in ("copies of outputs", "queue", "cleared every epoch"):
            self.kept.append(output.detach().clone())
        elif cause == "gradients kept":
            self.kept.append([parameter.grad for parameter in self.model.parameters()])
        elif cause == "exceptions kept":
            try:
                self.fail()
            except ValueError as error:
                self.kept.append(error)
        elif cause == "history concatenated":
            seen = self.cache.get(0, torch.empty(0, device="cuda"))
            self.cache[0] = torch.cat([seen, output.detach().flatten().float()[: 1 << 18]])
        elif cause == "cache without an end":
            self.cache[count] = torch.empty(self.chance.randrange(1 << 14, 1 << 20), device="cuda")
        elif cause == "cache that fills":
            key = self.chance.randrange(max(2, self.bound // 3))
            if key not in self.cache:
                self.cache[key] = torch.empty((key + 1) << 16, device="cuda")
        elif cause == "last output held":
            self.cache[0] = output.detach().clone()

    def evaluate(self) -> None:
        self.model.eval()
        with self.torch.set_grad_enabled(self.plan.cause == "evaluation kept"):
            for _ in range(3):
                loss = self.model.loss(max(self.plan.sizes))
                if self.plan.cause == "evaluation kept":
                    self.kept.append(loss)
        self.output = None
        self.model.train()

    def after_epoch(self, epoch: int) -> None:
        torch, cause = self.torch, self.plan.cause
        if cause == "optimizers kept":
            self.kept.append(self.optimizer)
            self.optimizer = torch.optim.AdamW(self.model.parameters())
        elif cause == "hooks pile up":
            self.hooked.register_forward_hook(self.keep_copy)
        elif cause == "cleared every epoch":
            self.kept.clear()
        elif cause == "average appears" and epoch == 3:
            self.kept.append([parameter.detach().clone() for parameter in self.model.parameters()])

    def run(self) -> None:
        loader, count = self.torch.utils.data.DataLoader(range(self.plan.steps)), 0
        for epoch in range(EPOCHS):
            for _ in loader:
                self.step(count)
                count += 1
            if self.plan.evaluates or self.plan.cause == "evaluation kept":
                self.evaluate()
            self.after_epoch(epoch)
