"""Further jobs beside the forty: rarer holders, and courses that are easily mistaken: `python more.py NAME`."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import logging.handlers
import random
import threading
import weakref
from typing import Any, Callable, Optional

import torch
from torch import nn

from models import DEVICE, WIDTH, Encoder, LanguageModel, loader, loss_of, tokens, train_step
from pace import Pace, main

EPOCHS = 20
STEPS = 20
REQUESTS = 600
CHOICE = random.Random(17)


@functools.lru_cache(maxsize=1)
def encoder() -> nn.Module:
    return Encoder().to(DEVICE).eval()


@torch.inference_mode()
def features(batch: int = 8) -> torch.Tensor:
    return encoder()(tokens(batch))


def recorder() -> Callable[[torch.Tensor], int]:
    history = []

    def record(hidden: torch.Tensor) -> int:
        history.append(hidden)
        return len(history)

    return record


def closure() -> None:
    """A function keeps all its arguments in a list of the enclosing function."""
    record, pace = recorder(), Pace(REQUESTS)
    for _ in range(REQUESTS):
        record(features())
        pace.step()


def smoothed(hidden: torch.Tensor, seen: list[torch.Tensor] = []) -> torch.Tensor:  # noqa: B006
    seen.append(hidden)
    return hidden + seen[0]


def default_argument() -> None:
    """A list as a default value is created once, for all calls."""
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS):
        smoothed(features())
        pace.step()


class Session:
    """A customer's session. Its cleanup refers to the session, so the session never ends."""

    def __init__(self) -> None:
        self.state = features(4)
        weakref.finalize(self, self.close)

    def close(self) -> None:
        self.state.zero_()


def finalizers() -> None:
    """`weakref.finalize` holds its callback, which is a method of the very object."""
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS):
        Session()
        pace.step()


TRACE: contextvars.ContextVar[tuple[torch.Tensor, ...]] = contextvars.ContextVar("TRACE", default=())


def context_variable() -> None:
    """Each request adds to a variable of the context, and all run in the same one."""
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS):
        TRACE.set((*TRACE.get(), features(4)))
        pace.step()


def buffered_log() -> None:
    """A handler keeps the records of the log until there is an error, with the tensors that they are about."""
    handler = logging.handlers.MemoryHandler(1_000_000, logging.ERROR, logging.NullHandler())
    log = logging.getLogger("training")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    model = nn.Sequential(Encoder(), nn.Linear(WIDTH, 2000)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS, 2), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            log.info("scores %s", train_step(model, optimizer, batch.to(DEVICE)))
            pace.step()


class Plan:
    """A plan with a reference to its result, which refers to the plan."""

    def __init__(self) -> None:
        self.result = Result(self)


class Result:
    """The result of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.hidden = plan, features()


def collector_thresholds() -> None:
    """The collector is on, but its threshold is never reached."""
    gc.set_threshold(10_000_000, 1000, 1000)
    pace = Pace(REQUESTS)
    for _ in range(REQUESTS):
        Plan()
        pace.step()


class Detector(nn.Module):
    """Its anchors are cached by `lru_cache`, which holds the detector as its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def anchors(self, height: int) -> torch.Tensor:
        return torch.arange(height, device=DEVICE).float()

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return self.layers(picture) + self.anchors(512)


def load() -> nn.Module:
    with DEVICE:
        return Detector().eval()


def cached_method() -> None:
    """A service loads its model again at times; a cache of a method keeps each one."""
    pace, model = Pace(REQUESTS), load()
    for request in range(REQUESTS):
        if request % 20 == 0:
            model = load()
        with torch.inference_mode():
            model(torch.rand(4, 512, device=DEVICE))
        pace.step()


def library_cache() -> None:
    """The cache of a prompt, as transformers has it, is given to the model as it is."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 2000}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 1 << 20}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).to(DEVICE).eval()
    stored = DynamicCache()
    pace = Pace(REQUESTS)
    for request in range(REQUESTS):
        turn(model, stored, 16 + request % 9)
        pace.step()


@torch.inference_mode()
def turn(model: Any, stored: Any, length: int) -> None:
    model(tokens(1, length), past_key_values=stored, use_cache=True, logits_to_keep=1)


def unfinished_tasks() -> None:
    """Tasks wait for a client that has left; the loop and a set of tasks hold them."""
    waiting: set[asyncio.Task[None]] = set()

    async def answer(left: asyncio.Event) -> None:
        hidden = features(4)
        await left.wait()
        hidden.sum()

    async def serve() -> None:
        pace = Pace(REQUESTS)
        for _ in range(REQUESTS):
            waiting.add(asyncio.create_task(answer(asyncio.Event())))
            await asyncio.sleep(0)
            pace.step()

    asyncio.run(serve())


LOCAL = threading.local()


def thread_local() -> None:
    """One thread serves, and keeps all answers in its own part of a `threading.local`."""

    def serve() -> None:
        LOCAL.answers = []
        pace = Pace(REQUESTS)
        for _ in range(REQUESTS):
            LOCAL.answers.append(features(4))
            pace.step()

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()


def bursts() -> None:
    """Requests come in bursts, each of which is freed at its end; there are pauses in between."""
    pace = Pace(REQUESTS)
    answers: list[torch.Tensor] = []
    for request in range(REQUESTS):
        if request % 60 < 40:
            answers.append(features(24))
        elif request % 60 == 40:
            answers.clear()
        pace.step()


def lengths_that_differ() -> None:
    """Each step has another length, so live memory differs at every step's end; none of it stays."""
    model, last = LanguageModel().to(DEVICE), Last()
    optimizer = torch.optim.AdamW(model.parameters())
    pace = Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in loader(STEPS, 16, 128):
            batch = batch[:, : CHOICE.randint(8, 128)]
            last.scores = train_step(model, optimizer, batch.to(DEVICE))
            pace.step()


class Last:
    """The model's last output."""

    scores: Optional[torch.Tensor] = None


def notebook() -> None:
    """Cells that are run with pauses between them: models of other sizes are trained under the same names."""
    pace = Pace(REQUESTS)
    for width in (256, 384, 256, 256):
        model = LanguageModel(2, width).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(REQUESTS // 4):
            if step < 100:
                batch = tokens()
                loss = loss_of(model(batch), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            pace.step()


if __name__ == "__main__":
    main(globals())
