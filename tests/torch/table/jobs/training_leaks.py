"""Trainings with epochs that keep what they should free: `python training_leaks.py NAME`."""

from __future__ import annotations

import collections
import gc
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from models import DEVICE, LENGTH, WIDTH, Encoder, LanguageModel, loader, loss_of, train_step
from pace import Pace, main

EPOCHS = 20
STEPS = 20

OUTPUTS: list[torch.Tensor] = []


def validation_outputs() -> None:
    """Each validation adds its scores to a list of the module, for a report at the very end."""
    model = LanguageModel().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    training, validation = loader(STEPS - 4), loader(4)
    pace = Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            train_step(model, optimizer, batch.to(DEVICE))
            pace.step()
        validate(model, validation, pace)


def validate(model: nn.Module, validation: Any, pace: Pace) -> None:
    with torch.no_grad():
        for (batch,) in validation:
            OUTPUTS.append(model(batch.to(DEVICE)))
            pace.step()


class Probed(nn.Module):
    """A model that remembers its features for an analysis."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(WIDTH, 2000)
        self.features: dict[int, torch.Tensor] = {}
        self.calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(batch)
        self.features[self.calls] = hidden.detach().float()
        self.calls += 1
        return self.head(hidden)


def features_by_step() -> None:
    """A model files the features of each step under its number, in a dict of its own."""
    model = Probed().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            train_step(model, optimizer, batch.to(DEVICE))
            pace.step()


class Meter:
    """A moving average over the last values; its author forgot to limit their number."""

    def __init__(self) -> None:
        self.window: collections.deque[torch.Tensor] = collections.deque()

    def update(self, scores: torch.Tensor, batch: torch.Tensor) -> None:
        errors = functional.cross_entropy(scores.transpose(1, 2), batch, reduction="none")
        self.window.append(errors[..., None].expand(-1, -1, WIDTH).contiguous())


def metric_window() -> None:
    """A metric keeps its values in a deque without a maximal length."""
    model, meter = LanguageModel().to(DEVICE), Meter()
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            batch = batch.to(DEVICE)
            meter.update(train_step(model, optimizer, batch), batch)
            pace.step()


class Report:
    """The result of a step. It refers to its step, and the step refers to it."""

    def __init__(self, step: Step, hidden: torch.Tensor) -> None:
        self.step, self.hidden = step, hidden


class Step:
    """A step of the training, as an object."""

    def __init__(self, model: nn.Module, batch: torch.Tensor) -> None:
        hidden = model(batch)
        hidden.square().mean().backward()
        self.report = Report(self, hidden.detach())


def collector_off() -> None:
    """The collector is switched off for speed, and each step leaves a cycle of two objects behind."""
    gc.disable()
    model = nn.Sequential(Encoder(), nn.Linear(WIDTH, WIDTH)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            optimizer.zero_grad()
            Step(model, batch.to(DEVICE))
            optimizer.step()
            pace.step()


def watch(module: nn.Module) -> None:
    """Registers a hook that keeps the module's output."""
    seen: list[torch.Tensor] = []

    def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        seen.append(output.detach())

    module.register_forward_hook(hook)


def forward_hook() -> None:
    """A hook for one picture of the activations was never removed."""
    model = LanguageModel().to(DEVICE)
    watch(model.encoder.layers[1])
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            train_step(model, optimizer, batch.to(DEVICE))
            pace.step()


def importance(weight: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(weight)


def weigh(weight: nn.Parameter) -> None:
    """The gradient of this step is weighed; the hook stays for those of all steps to come."""
    scale = importance(weight)
    weight.register_hook(lambda gradient: gradient * scale)


def tensor_hooks() -> None:
    """Each step registers one more hook on a parameter, and each hook keeps its own scale."""
    model = LanguageModel().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            weigh(model.encoder.layers[0].wide[0].weight)
            train_step(model, optimizer, batch.to(DEVICE))
            pace.step()


class Average:
    """The mean loss of all validations so far."""

    def __init__(self) -> None:
        self.total, self.count = torch.zeros((), device=DEVICE), 0

    def add(self, loss: torch.Tensor) -> None:
        self.total, self.count = self.total + loss, self.count + 1


def summed_loss() -> None:
    """Losses of validations are summed with their graphs, which no backward pass ever frees."""
    model, average = LanguageModel(1, 128).to(DEVICE), Average()
    optimizer = torch.optim.AdamW(model.parameters())
    training, validation = loader(STEPS - 3), loader(3, 4)
    pace = Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            train_step(model, optimizer, batch.to(DEVICE))
            pace.step()
        for (batch,) in validation:
            evaluate(model, batch.to(DEVICE), average)
            pace.step()


def evaluate(model: nn.Module, batch: torch.Tensor, average: Average) -> None:
    scores = model(batch)
    average.add(loss_of(scores, batch))


class Restarts:
    """Warm restarts: a new optimizer and schedule each time, beside the old ones."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.schedules: list[torch.optim.lr_scheduler.LRScheduler] = []

    def restart(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.schedules.append(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS))
        return optimizer


def old_schedules() -> None:
    """Each epoch begins with a new optimizer; the schedules of the old ones are kept, and hold the optimizers."""
    model = LanguageModel().to(DEVICE)
    restarts = Restarts(model)
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        optimizer = restarts.restart()
        for (batch,) in training:
            train_step(model, optimizer, batch.to(DEVICE))
            restarts.schedules[-1].step()
            pace.step()


class Memory(nn.Module):
    """All inputs of the model, as one long buffer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(WIDTH, 2000)
        self.register_buffer("seen", torch.zeros(0, LENGTH, WIDTH))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(batch)
        self.remember(hidden.detach())
        return self.head(hidden)

    def remember(self, hidden: torch.Tensor) -> None:
        self.seen = torch.cat([self.seen, hidden])


def growing_buffer() -> None:
    """A buffer of the model becomes longer with each step."""
    model = Memory().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            train_step(model, optimizer, batch.to(DEVICE))
            pace.step()


class Deep(nn.Module):
    """Many small layers: a large graph with few bytes on the device."""

    def __init__(self, layers: int = 80) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(layers))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms):
            hidden = hidden + functional.gelu(layer(norm(hidden)))
        return hidden


class Smoothed:
    """A moving average of the loss, for the progress bar."""

    def __init__(self) -> None:
        self.value = torch.zeros((), device=DEVICE)

    def update(self, loss: torch.Tensor) -> None:
        self.value = 0.98 * self.value + 0.02 * loss


def smoothed_loss() -> None:
    """The average was not detached: each step's graph stays behind the last one, in memory of the host alone."""
    model, smoothed = Deep().to(DEVICE), Smoothed()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    training, pace = loader(STEPS, 32), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            loss = model(batch.to(DEVICE).float()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            smoothed.update(loss)
            pace.step()


if __name__ == "__main__":
    main(globals())
