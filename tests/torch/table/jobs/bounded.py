"""Caches and queues that fill and have a bound: `python bounded.py NAME`. Nothing leaks here.

The first five are trainings with epochs, the others serve or loop without.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import queue
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from caches import LRUCache, MemoryBank, Ring
from models import DEVICE, VOCABULARY, WIDTH, Encoder, LanguageModel, loader, tokens, train_step
from pace import Pace, main

EPOCHS = 20
STEPS = 20
REQUESTS = 600
CHOICE = random.Random(11)


def memory_bank() -> None:
    """Contrastive training against a bank of 240 features. If the bank is full, each new one replaces a random one."""
    model, bank = Encoder().to(DEVICE), MemoryBank(240)
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            hidden = model(batch.to(DEVICE))
            other = CHOICE.choice(bank.entries) if bank.entries else hidden.detach()
            optimizer.zero_grad()
            (hidden * other).mean().backward()
            optimizer.step()
            bank.add(hidden.detach())
            pace.step()


class Biased(nn.Module):
    """Attention with a bias for each length, made when that length is first seen."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LanguageModel(1)
        self.biases: dict[int, torch.Tensor] = {}

    def bias_of(self, length: int) -> torch.Tensor:
        bucket = -(-length // 8) * 8
        if bucket not in self.biases:
            self.biases[bucket] = torch.zeros(64, bucket, bucket, device=DEVICE)
        return self.biases[bucket]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        bias = self.bias_of(batch.shape[1])
        return self.model(batch) + bias.mean()


def biases_by_shape() -> None:
    """A bias for each of 24 lengths; texts become longer during the first three fifths of the training."""
    model = Biased().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    pace = Pace(EPOCHS * STEPS)
    for epoch in range(EPOCHS):
        for number, (batch,) in enumerate(loader(STEPS, 2, 192)):
            longest = min(24, 1 + (epoch * STEPS + number) * 24 * 5 // (EPOCHS * STEPS * 3))
            length = 8 * (longest if CHOICE.random() < 0.3 else CHOICE.randint(1, longest))
            train_step(model, optimizer, batch[:, :length].to(DEVICE))
            pace.step()


def lru_of_features() -> None:
    """Features of a frozen encoder, of 210 texts at most; each step draws one of 600."""
    frozen, head, cache = Encoder().to(DEVICE).eval(), nn.Linear(WIDTH, VOCABULARY).to(DEVICE), LRUCache(210)
    texts = TensorDataset(torch.arange(600))
    drawn = DataLoader(texts, sampler=RandomSampler(texts, replacement=True, num_samples=STEPS))
    optimizer = torch.optim.AdamW(head.parameters())
    pace = Pace(EPOCHS * STEPS)

    def features() -> torch.Tensor:
        with torch.no_grad():
            return frozen(tokens())

    for _ in range(EPOCHS):
        for (number,) in drawn:
            hidden = cache.get(int(number), features)
            optimizer.zero_grad()
            head(hidden).square().mean().backward()
            optimizer.step()
            pace.step()


def logged_scores() -> None:
    """Scores are queued for a logger that hangs; the queue takes 340 scores, and later ones are dropped."""
    model, logged = LanguageModel().to(DEVICE), queue.Queue[torch.Tensor](maxsize=340)
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            scores = train_step(model, optimizer, batch.to(DEVICE))
            with contextlib.suppress(queue.Full):
                logged.put_nowait(scores[:1].clone())
            pace.step()


class Images(Dataset[torch.Tensor]):
    """Prepared once, on the device, and kept from then on."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.prepared: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.prepared:
            self.prepared[index] = torch.rand(3, 224, 224, device=DEVICE)
        return self.prepared[index]


def prepared_images() -> None:
    """A data set of 260 images is kept on the device as it is read; the training ends within the second epoch."""
    images = Images(260)
    training = DataLoader(images, batch_size=1, shuffle=True)
    model = nn.Sequential(nn.Linear(224, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    steps = EPOCHS * STEPS
    pace = Pace(steps)
    while steps:
        for image in training:
            optimizer.zero_grad()
            model(image).square().mean().backward()
            optimizer.step()
            pace.step()
            steps -= 1
            if not steps:
                break


def recent_frames() -> None:
    """A detector looks at the last 360 frames of a camera."""
    recent: collections.deque[torch.Tensor] = collections.deque(maxlen=360)
    model = nn.Sequential(nn.Linear(160, 256), nn.ReLU(), nn.Linear(256, 4)).to(DEVICE)
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS):
        frame = torch.rand(3, 256, 160, device=DEVICE)
        recent.append(frame)
        with torch.no_grad():
            model(frame - recent[0])
        pace.step()


@functools.lru_cache(maxsize=1)
def encoder() -> nn.Module:
    return Encoder().to(DEVICE).eval()


@functools.lru_cache(maxsize=384)
def embedding(text: int) -> torch.Tensor:
    with torch.inference_mode():
        return encoder()(tokens(4, 32 + text % 64))


def cached_lately() -> None:
    """A search service caches the embeddings of the last 384 texts."""
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        # One request of five repeats a text of the last 50 requests.
        known = request > 50 and CHOICE.random() < 0.2
        embedding(request - CHOICE.randint(1, 50) if known else request)
        pace.step()


class Sessions:
    """The states of the latest customers."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.states: collections.OrderedDict[int, torch.Tensor] = collections.OrderedDict()

    @torch.inference_mode()
    def turn(self, customer: int) -> None:
        self.states[customer] = encoder()(tokens(4))
        self.states.move_to_end(customer)
        while len(self.states) > self.capacity:
            self.states.popitem(last=False)


def states_of_sessions() -> None:
    """A server keeps the states of the latest 570 customers, and reaches this number shortly before its end."""
    sessions = Sessions(570)
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        sessions.turn(request)
        pace.step()


class Window:
    """Keys and values of the last tokens, layer by layer."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.keys = [torch.zeros(1, 0, 512, device=DEVICE) for _ in range(4)]
        self.values = [torch.zeros(1, 0, 512, device=DEVICE) for _ in range(4)]

    def extended(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[layer] = torch.cat([self.keys[layer], key], 1)[:, -self.length :]
        self.values[layer] = torch.cat([self.values[layer], value], 1)[:, -self.length :]
        return self.keys[layer], self.values[layer]


def sliding_window() -> None:
    """A conversation without an end attends to its last 7,200 tokens."""
    layers = nn.ModuleList(nn.Linear(512, 3 * 512) for _ in range(4)).to(DEVICE)
    window, pace = Window(7200), Pace(REQUESTS)
    with torch.inference_mode():
        for request in range(REQUESTS):
            hidden = torch.randn(1, 16 + request % 9, 512, device=DEVICE)
            for number, layer in enumerate(layers):
                query, key, value = layer(hidden).chunk(3, -1)
                key, value = window.extended(number, key, value)
                hidden = nn.functional.scaled_dot_product_attention(query, key, value)
            pace.step()


def ring_of_outputs() -> None:
    """A controller keeps its last 400 outputs in preallocated slots."""
    ring, model = Ring(400), LanguageModel(1).to(DEVICE).eval()
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS):
        with torch.inference_mode():
            ring.add(model(tokens(1)))
        pace.step()


if __name__ == "__main__":
    main(globals())
