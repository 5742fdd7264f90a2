"""Memory that grows for the first part of a run and then stays: `python levels.py NAME`. Nothing leaks here."""

from __future__ import annotations

import copy
import random

import torch
from torch import nn

from models import DEVICE, WIDTH, LanguageModel, loader, train_step
from pace import Pace, main

EPOCHS = 20
STEPS = 20
REQUESTS = 600
CHOICE = random.Random(13)


def unfreezing() -> None:
    """One more layer is trained in each of the first eight epochs; each epoch has its own optimizer."""
    model = LanguageModel(8, 384).to(DEVICE)
    for layer in model.encoder.layers:
        layer.requires_grad_(False)
    training, pace = loader(STEPS, 4, 32), Pace(EPOCHS * STEPS)
    for epoch in range(EPOCHS):
        if epoch < 8:
            model.encoder.layers[7 - epoch].requires_grad_(True)
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
        for (batch,) in training:
            train_step(model, optimizer, batch.to(DEVICE))
            pace.step()


def late_averages() -> None:
    """Three moving averages of the weights begin at the epochs 3, 5 and 7."""
    model = LanguageModel(4, 512).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    averages: list[nn.Module] = []
    training, pace = loader(STEPS, 4, 32), Pace(EPOCHS * STEPS)
    for epoch in range(EPOCHS):
        if epoch in (3, 5, 7):
            averages.append(copy.deepcopy(model).requires_grad_(False))
        for (batch,) in training:
            train_step(model, optimizer, batch.to(DEVICE))
            for average in averages:
                mixed(average, model)
            pace.step()


def mixed(average: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)


class Workspace(nn.Module):
    """A model that writes into a workspace, made larger when a batch does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LanguageModel(1)
        self.space = torch.empty(0, device=DEVICE)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        needed = batch.numel() * WIDTH * 48
        if self.space.numel() < needed:
            self.space = torch.empty(needed, device=DEVICE)
        return self.model(batch)


def curriculum() -> None:
    """Texts become longer for nine epochs and stay so; the workspace has the size that the longest text needed."""
    model = Workspace().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    pace = Pace(EPOCHS * STEPS)
    for epoch in range(EPOCHS):
        length = 24 * min(epoch + 1, 9)
        for (batch,) in loader(STEPS, 8, length):
            train_step(model, optimizer, batch.to(DEVICE))
            pace.step()


class Camera:
    """A stream of pictures, with buffers that are made at the first picture."""

    def __init__(self) -> None:
        self.buffers: list[torch.Tensor] = []

    def frame(self) -> torch.Tensor:
        if not self.buffers:
            self.buffers = [torch.zeros(3, 512, 512, device=DEVICE) for _ in range(2)]
        self.buffers.reverse()
        return self.buffers[0]


def cameras_come() -> None:
    """Thirty cameras are switched on one after the other, within the first two fifths of the run."""
    cameras = [Camera() for _ in range(30)]
    model = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 4)).to(DEVICE)
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        on = min(30, 1 + request // 8)
        with torch.inference_mode():
            model(cameras[CHOICE.randrange(on) if request >= 240 else on - 1].frame())
        pace.step()


class Causal(nn.Module):
    """Attention under a mask that is as long as the longest prompt so far."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 3 * 64)
        self.register_buffer("mask", torch.zeros(0, 0), persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        length = hidden.shape[1]
        if self.mask.shape[0] < length:
            self.mask = torch.full((length, length), float("-inf"), device=DEVICE).triu_(1)
        query, key, value = self.inner(hidden).chunk(3, -1)
        mask = self.mask[:length, :length]
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def lazy_masks() -> None:
    """Prompts become longer through the first two fifths of the run, and four layers have a mask each."""
    layers = [Causal().to(DEVICE) for _ in range(4)]
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        longest = 128 + 2432 * min(request, 240) // 240
        length = longest if request % 5 == 0 else CHOICE.randint(64, longest)
        with torch.inference_mode():
            hidden = torch.randn(1, length, 64, device=DEVICE)
            for layer in layers:
                hidden = layer(hidden)
        pace.step()


if __name__ == "__main__":
    main(globals())
