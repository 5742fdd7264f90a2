"""Servers and loops without epochs that keep what they should free: `python serving_leaks.py NAME`."""

from __future__ import annotations

import functools
import itertools
import queue
import random
import threading
from typing import ClassVar, Iterator, Optional

import torch
from torch import multiprocessing, nn

from models import DEVICE, WIDTH, Encoder, LanguageModel, loss_of, tokens
from pace import Pace, main

REQUESTS = 600
CHOICE = random.Random(7)


@functools.lru_cache(maxsize=1)
def encoder() -> nn.Module:
    return Encoder().to(DEVICE).eval()


@functools.cache
def embedding(text: int) -> torch.Tensor:
    with torch.inference_mode():
        return encoder()(tokens(8, 32 + text % 64))


def cached_embeddings() -> None:
    """A search service caches the embedding of each text, and texts never end."""
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        # Two of five texts were asked for before.
        known = request > 10 and CHOICE.random() < 0.4
        embedding(CHOICE.randrange(request) if known else request)
        pace.step()


class Adapter(nn.Module):
    """The learned state of one customer."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.up(torch.relu(self.down(hidden)))


def answer_of(adapter: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return adapter(encoder()(tokens(2)))


def autocast_left_on() -> None:
    """Autocast was entered once, for the whole service: its cache keeps the half-precision copy of every weight."""
    torch.autocast("cuda", torch.bfloat16).__enter__()
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        if request % 2 == 0:
            with DEVICE:
                adapter = Adapter()
        answer_of(adapter)
        pace.step()


def frames() -> Iterator[torch.Tensor]:
    """A camera."""
    while True:
        yield torch.rand(3, 256, 160, device=DEVICE)


def tee_of_frames() -> None:
    """A stream is split for a second reader, which never reads."""
    live, preview = itertools.tee(frames())
    model = nn.Sequential(nn.Linear(160, 256), nn.ReLU(), nn.Linear(256, 4)).to(DEVICE)
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS):
        with torch.no_grad():
            model(next(live))
        pace.step()
    del preview


class Server:
    """Answers requests, and passes each answer to the statistics."""

    def __init__(self) -> None:
        self.model = LanguageModel(1).to(DEVICE).eval()
        self.results: queue.Queue[torch.Tensor] = queue.Queue()

    @torch.inference_mode()
    def answer(self) -> None:
        scores = self.model(tokens(1))
        self.results.put(scores)


def unread_results() -> None:
    """The thread that read the queue of results has ended."""
    server = Server()

    def write_statistics() -> None:
        for _ in range(5):
            server.results.get()

    threading.Thread(target=write_statistics, daemon=True).start()
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS):
        server.answer()
        pace.step()


def deliver(prompt: torch.Tensor, read: threading.Event) -> None:
    with torch.inference_mode():
        hidden = encoder()(prompt)
    read.wait()
    hidden.sum()


def waiting_threads() -> None:
    """Each answer has its own delivery thread; a client that has left never reads, so its thread waits for ever."""
    encoder()
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        read = threading.Event()
        threading.Thread(target=deliver, args=(tokens(8, 80), read), daemon=True).start()
        if request % 3:
            read.set()
        pace.step()


class Refused(Exception):
    """Raised for an answer that must not be shown."""


def checked(prompt: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        hidden = encoder()(prompt)
    if prompt.shape[1] % 2:
        raise Refused("the answer is refused")
    return hidden


def kept_exceptions() -> None:
    """Refusals are collected as exceptions; their tracebacks keep the frames, and the frames keep their tensors."""
    failures: list[Refused] = []
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        try:
            checked(tokens(8, 60 + request % 8))
        except Refused as refused:
            failures.append(refused)
        pace.step()


def stream(prompt: torch.Tensor) -> Iterator[int]:
    """An answer, token by token."""
    with torch.inference_mode():
        memory = encoder()(prompt)
    for position in range(memory.shape[1]):
        yield position * memory.shape[0]


STREAMS: dict[int, Iterator[int]] = {}


def suspended_generators() -> None:
    """Streams that the reader left are never closed."""
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        STREAMS[request] = stream(tokens(8, 64))
        reads = 4 if CHOICE.random() < 0.6 else 100
        for _ in itertools.islice(STREAMS[request], reads):
            pass
        if reads == 100:
            del STREAMS[request]
        pace.step()


def curvature(model: nn.Module, batch: torch.Tensor, target: torch.Tensor) -> None:
    loss = (model(batch) - target).square().mean()
    loss.backward(create_graph=True)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad


def fitted(batch: torch.Tensor, target: torch.Tensor, pace: Pace) -> None:
    with DEVICE:
        model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    for _ in range(4):
        model.zero_grad()
        curvature(model, batch, target)
        pace.step()


def second_order() -> None:
    """`backward(create_graph=True)` lets parameter and gradient hold each other: each restart leaves a model."""
    batch, target = torch.randn(256, 64, device=DEVICE), torch.randn(256, 1, device=DEVICE)
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS // 4):
        fitted(batch, target, pace)


class Past:
    """Keys and values of all tokens so far, layer by layer."""

    def __init__(self) -> None:
        self.keys: list[Optional[torch.Tensor]] = [None] * 4
        self.values: list[Optional[torch.Tensor]] = [None] * 4

    def extended(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before, other = self.keys[layer], self.values[layer]
        if before is not None and other is not None:
            key, value = torch.cat([before, key], 1), torch.cat([other, value], 1)
        self.keys[layer], self.values[layer] = key, value
        return key, value


class Decoder(nn.Module):
    """Attends to all previous tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 3 * 512) for _ in range(4))

    def forward(self, hidden: torch.Tensor, past: Past) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            query, key, value = layer(hidden).chunk(3, -1)
            key, value = past.extended(number, key.contiguous(), value.contiguous())
            hidden = nn.functional.scaled_dot_product_attention(query, key, value)
        return hidden


def prompt_cache() -> None:
    """The cache of the system prompt is handed out without a copy, so each turn of each customer is appended to it."""
    model, prompt = Decoder().to(DEVICE).eval(), Past()
    pace = Pace(REQUESTS)
    with torch.inference_mode():
        model(torch.randn(1, 256, 512, device=DEVICE), prompt)
        for request in range(REQUESTS):
            model(torch.randn(1, 16 + request % 9, 512, device=DEVICE), prompt)
            pace.step()


class Worker:
    """Processes a part of the requests."""

    answered: ClassVar[list[torch.Tensor]] = []

    def __init__(self, number: int) -> None:
        self.number, self.model = number, LanguageModel(1).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def work(self) -> None:
        batch = tokens(1)
        scores = self.model(batch)
        self.optimizer.zero_grad()
        loss_of(scores, batch).backward()
        self.optimizer.step()
        if self.number == 1:
            Worker.answered.append(scores.detach())


def works(number: int) -> None:
    torch.backends.cudnn.enabled = False
    worker, pace = Worker(number), Pace(REQUESTS, f"worker {number}")
    for _ in range(REQUESTS):
        worker.work()
        pace.step()


def one_of_two_workers() -> None:
    """Two spawned workers, one of which files its answers in a list of its class."""
    multiprocessing.spawn(works, nprocs=2)


if __name__ == "__main__":
    main(globals())
