"""Memory that grows within an epoch or a request and is then freed: `python releases.py NAME`. Nothing leaks here."""

from __future__ import annotations

import torch
from torch import nn

from models import DEVICE, VOCABULARY, WIDTH, LanguageModel, loader, loss_of, tokens, train_step
from pace import Pace, main

EPOCHS = 16
STEPS = 25
TICKS = 600


class Agreement:
    """A metric that needs all scores of an epoch."""

    def __init__(self) -> None:
        self.scores: list[torch.Tensor] = []

    def update(self, scores: torch.Tensor) -> None:
        self.scores.append(scores)

    def compute(self) -> torch.Tensor:
        mean = torch.stack([scores.mean() for scores in self.scores]).mean()
        self.scores.clear()
        return mean


def metric_states() -> None:
    """A metric keeps the scores of each step and is computed at the epoch's end."""
    model, agreement = LanguageModel().to(DEVICE), Agreement()
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS), Pace(EPOCHS * STEPS)
    for _ in range(EPOCHS):
        for (batch,) in training:
            agreement.update(train_step(model, optimizer, batch.to(DEVICE)))
            pace.step()
        agreement.compute()


class Recurrent(nn.Module):
    """A cell that passes its state on."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(VOCABULARY, WIDTH), nn.GRUCell(WIDTH, WIDTH)

    def forward(self, batch: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(batch)
        for position in range(8):
            state = self.cell(embedded[:, position], state)
        return state


def carried_state() -> None:
    """The state is carried through an epoch with its graph; there is one backward pass at the epoch's end."""
    model = Recurrent().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    training, pace = loader(STEPS, 128, 8), Pace(EPOCHS * STEPS)
    state = torch.zeros(128, WIDTH, device=DEVICE)
    for _ in range(EPOCHS):
        for (batch,) in training:
            state = model(batch.to(DEVICE), state)
            pace.step()
        optimizer.zero_grad()
        state.square().mean().backward()
        optimizer.step()
        state = state.detach()


class Learner:
    """Learns from many tasks at once: the gradients of twenty of them are gathered before a step is made."""

    def __init__(self) -> None:
        self.model = LanguageModel(2, 320).to(DEVICE)
        self.gradients: list[tuple[torch.Tensor, ...]] = []

    def task(self) -> None:
        batch = tokens(4)
        loss = loss_of(self.model(batch), batch)
        self.gradients.append(torch.autograd.grad(loss, list(self.model.parameters())))

    def learn(self) -> None:
        with torch.no_grad():
            for number, parameter in enumerate(self.model.parameters()):
                for gradients in self.gradients:
                    parameter.sub_(gradients[number], alpha=0.01 / len(self.gradients))
        self.gradients.clear()


def tasks_of_a_step() -> None:
    """A loop without an optimizer: gradients of twenty tasks are kept in a list, averaged, and thrown away."""
    learner, pace = Learner(), Pace(TICKS // 2)
    for _ in range(TICKS // 40):
        for _ in range(20):
            learner.task()
            pace.step()
        learner.learn()


def predictions() -> None:
    """After each hundred steps an evaluation gathers the scores of 20 batches for one figure."""
    model = LanguageModel().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    pace = Pace(TICKS)
    for _ in range(TICKS // 60):
        for _ in range(40):
            train_step(model, optimizer, tokens())
            pace.step()
        evaluation(model, pace)


def evaluation(model: nn.Module, pace: Pace) -> torch.Tensor:
    scores, targets = [], []
    with torch.no_grad():
        for _ in range(20):
            batch = tokens()
            scores.append(model(batch))
            targets.append(batch)
            pace.step()
        return loss_of(torch.cat(scores), torch.cat(targets))


@torch.inference_mode()
def generate(layers: nn.ModuleList, length: int, pace: Pace) -> None:
    """Each request has its own keys and values, which grow with each token and are freed with the answer."""
    keys, values = [], []
    for _ in layers:
        keys.append(torch.zeros(16, 0, WIDTH, device=DEVICE))
        values.append(torch.zeros(16, 0, WIDTH, device=DEVICE))
    hidden = torch.randn(16, 96, WIDTH, device=DEVICE)
    for _ in range(length):
        for number, layer in enumerate(layers):
            query, key, value = layer(hidden).chunk(3, -1)
            keys[number] = torch.cat([keys[number], key], 1)
            values[number] = torch.cat([values[number], value], 1)
            hidden = nn.functional.scaled_dot_product_attention(query, keys[number], values[number])
        hidden = hidden[:, -16:]
        pace.step()


def caches_of_requests() -> None:
    """A server answers one request after the other, 30 rounds of tokens each."""
    layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(4)).to(DEVICE)
    pace = Pace(TICKS)
    for _ in range(TICKS // 30):
        generate(layers, 30, pace)


if __name__ == "__main__":
    main(globals())
