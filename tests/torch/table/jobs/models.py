"""Small models and data that many jobs share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

DEVICE = torch.device("cuda", 0)
VOCABULARY = 2000
WIDTH = 256
LENGTH = 64
BATCH = 8


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm_in, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm_in(hidden)
        hidden = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return hidden + self.wide(self.norm_out(hidden))


class Encoder(nn.Module):
    """Tokens to hidden states."""

    def __init__(self, layers: int = 2, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class LanguageModel(nn.Module):
    """Tokens to scores of the next token."""

    def __init__(self, layers: int = 2, width: int = WIDTH) -> None:
        super().__init__()
        self.encoder = Encoder(layers, width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(tokens))


def loss_of(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of the scores."""
    return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def tokens(batch: int = BATCH, length: int = LENGTH) -> torch.Tensor:
    """A batch on the device."""
    return torch.randint(0, VOCABULARY, (batch, length), device=DEVICE)


def loader(steps: int, batch: int = BATCH, length: int = LENGTH) -> DataLoader[tuple[torch.Tensor, ...]]:
    """A loader of `steps` batches from a data set on the host, shuffled each epoch."""
    data = TensorDataset(torch.randint(0, VOCABULARY, (steps * batch, length)))
    return DataLoader(data, batch_size=batch, shuffle=True)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """One step of training; returns the model's output."""
    scores = model(batch)
    loss = loss_of(scores, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return scores.detach()
