"""Sequence models: an encoder, a decoder, a GRU, experts, varying lengths, checkpoints, a curriculum.

`python text.py NAME` trains one. Nothing here leaks; the benchmark adds the leaks. Epochs and steps are not marked.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.backends.cudnn.enabled = False


def loader(samples: int, batch: int, length: int, vocab: int = 4096) -> DataLoader[tuple[torch.Tensor, ...]]:
    tokens = torch.randint(0, vocab, (samples, length))
    return DataLoader(TensorDataset(tokens, torch.randint(0, 10, (samples,))), batch_size=batch, shuffle=True)


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(x)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, width: int = 256, layers: int = 3, classes: int = 10, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(4096, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)
        self.checkpointed = checkpointed

    def features(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x  # pyright: ignore[reportReturnType]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(tokens).mean(dim=1))


@torch.no_grad()
def evaluate(model: nn.Module, data: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    model.eval()
    total = 0.0
    for tokens, label in data:
        total += F.cross_entropy(model(tokens.cuda()), label.cuda()).item()
    model.train()
    return total / len(data)


def encoder(epochs: int = 12) -> None:
    model = Encoder(layers=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    train, held_out = loader(16 * 22, 16, 128), loader(16 * 2, 16, 128)
    for _ in range(epochs):
        model.train()
        for tokens, label in train:
            loss = F.cross_entropy(model(tokens.cuda()), label.cuda())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        evaluate(model, held_out)


class Decoder(Encoder):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.features(tokens), self.embed.weight)


def decoder_ema(epochs: int = 10) -> None:
    """Mixed precision, and an averaged copy of the weights."""
    model = Decoder(layers=2).cuda()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for _ in range(epochs):
        for tokens, _label in loader(8 * 24, 8, 192):
            tokens = tokens.cuda()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(tokens)
                loss = F.cross_entropy(logits[:, :-1].reshape(-1, 4096).float(), tokens[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
            optimizer.zero_grad(set_to_none=True)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4096, 192)
        self.rnn = nn.GRU(192, 192, num_layers=1, batch_first=True)
        self.head = nn.Linear(192, 20)

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        y, hidden = self.rnn(self.embed(tokens), hidden)
        return self.head(y), hidden  # pyright: ignore[reportReturnType]


def recurrent(epochs: int = 14) -> None:
    """Truncated backpropagation through time: the hidden state is carried on, detached."""
    model = Tagger().cuda()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(epochs):
        hidden = None
        for tokens, _label in loader(32 * 20, 32, 10):
            tokens = tokens.cuda()
            y, hidden = model(tokens, hidden)
            hidden = hidden.detach()
            loss = F.cross_entropy(y.flatten(0, 1), tokens.flatten() % 20)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


class Experts(nn.Module):
    """Top-1 routing with a capacity that varies with the batch."""

    def __init__(self, width: int, experts: int = 6) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weight = self.gate(flat).softmax(dim=-1)
        share = torch.rand(len(self.experts)).softmax(0)  # routing that no value on the device decides
        counts = (share * len(flat)).int().clamp(min=1).tolist()
        out, begin = torch.zeros_like(flat), 0
        for place, (expert, count) in enumerate(zip(self.experts, counts)):
            index = torch.arange(begin, begin + count, device=x.device)
            y = expert(flat[index]) * weight[index, place : place + 1]
            out = out.index_add(0, index, y)
            begin += count
        return out.view_as(x)


class ExpertModel(nn.Module):
    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(4096, width), nn.Linear(width, 10)
        self.blocks, self.experts = nn.ModuleList([Block(width)]), nn.ModuleList([Experts(width)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block, experts in zip(self.blocks, self.experts):
            x = block(x)
            x = x + experts(x)
        return self.head(x.mean(1))


def experts(epochs: int = 9) -> None:
    model = ExpertModel().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(epochs):
        model.train()
        for tokens, label in loader(8 * 26, 8, 96):
            loss = F.cross_entropy(model(tokens.cuda()), label.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        evaluate(model, loader(16, 8, 96))


def varying_length(epochs: int = 10) -> None:
    model = Encoder(layers=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    rng = random.Random(5)
    for _ in range(epochs):
        for tokens, label in loader(12 * 26, 12, 512):
            tokens = tokens[:, : rng.randrange(24, 512)].cuda()
            loss = F.cross_entropy(model(tokens), label.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def checkpointed(epochs: int = 10) -> None:
    model = Encoder(layers=3, checkpointed=True).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for tokens, label in loader(16 * 24, 16, 160):
            loss = F.cross_entropy(model(tokens.cuda()), label.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def curriculum(epochs: int = 12) -> None:
    """Sequences grow from epoch to epoch."""
    model = Encoder(layers=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        for tokens, label in loader(8 * 20, 8, 48 * (epoch + 1)):
            loss = F.cross_entropy(model(tokens.cuda()), label.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


TRAINED: list[Callable[[], None]] = [
    encoder, decoder_ema, recurrent, experts, varying_length, checkpointed, curriculum,
]  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(1)
    random.seed(1)
    {train.__name__: train for train in TRAINED}[sys.argv[1]]()
