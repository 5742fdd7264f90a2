"""Small models of many kinds, for architectures.py: each with its batches, its loss and what it predicts.

The programs do not depend on computed values, so that they also run where kernels do nothing: no index comes from a
result, no branch from a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Batch = tuple[Tensor, ...]
OptimizerOf = Callable[[nn.Module], torch.optim.Optimizer]
WIDE = 128
WORDS = 512


class Watch(Protocol):
    """The observer of a trainer's loop."""

    def passed(self, model: nn.Module, begin: int) -> None:
        """Called after a forward pass."""

    def stepped(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Called after a step."""


def requests() -> int:
    """The number of blocks requested so far in this process."""
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def scalar(output: Tensor) -> Tensor:
    """A loss for any output."""
    return output.float().pow(2).mean()


@dataclass
class Case:
    """One architecture."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor] = lambda model, batch: scalar(model(*batch))
    predict: Callable[[nn.Module, Batch], Any] = lambda model, batch: model(*batch)
    # Calls of the model for each prediction.
    calls_each: int = 1
    # A trainer with its own loop; it returns the optimizer.
    fit: Callable[[nn.Module, int, OptimizerOf, Watch], None] | None = None
    kept: list[Any] = field(default_factory=list)


def tokens(count: int = 4, length: int = 64) -> Batch:
    """Sequences of words."""
    return (torch.randint(0, WORDS, (count, length)).cuda(),)


def images(count: int = 4, side: int = 32) -> Batch:
    """Pictures."""
    return (torch.rand(count, 3, side, side).cuda(),)


class Words(nn.Module):
    """torch's own encoder between an embedding and a head."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDE)
        layer = nn.TransformerEncoderLayer(WIDE, 4, 4 * WIDE, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDE, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of words."""
        return self.head(self.encoder(self.embed(ids)))


class Block(nn.Module):
    """A usual hand-written transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.wide, self.back = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two layers."""
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        scores = torch.softmax(q @ k.transpose(-1, -2) / WIDE**0.5, dim=-1)
        x = x + self.out(scores @ v)
        return x + self.back(functional.gelu(self.wide(self.after(x))))


class Vision(nn.Module):
    """Patches, blocks in a Sequential, a head."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDE, 4, 4)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.head = nn.Linear(WIDE, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes."""
        return self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


class Recomputed(nn.Module):
    """Blocks under a checkpoint."""

    def __init__(self, layers: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDE)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        """States of words."""
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def plain_blocks() -> nn.Module:
    """Only blocks, without an embedding or a head."""
    return nn.Sequential(*(Block() for _ in range(12)))


def convolutions(a: int, b: int) -> nn.Sequential:
    """Two convolutions."""
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    """A U-Net; a diffusion's time is an additional channel."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        widths = (channels, 16, 32, 64)
        self.down = nn.ModuleList(convolutions(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.middle = convolutions(64, 64)
        self.up = nn.ModuleList(convolutions(a, b) for a, b in ((128, 32), (64, 16), (32, 16)))
        self.last = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A picture of the same size."""
        passed = []
        for down in self.down:
            x = down(x)
            passed.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = up(torch.cat([x, passed.pop()], dim=1))
        return self.last(x)


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        stride = 1 if a == b else 2
        self.one, self.two = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.norm, self.norm_two = nn.BatchNorm2d(b), nn.BatchNorm2d(b)
        self.beside = nn.Identity() if a == b else nn.Conv2d(a, b, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions plus the residual connection."""
        y = functional.relu(self.norm(self.one(x)))
        return functional.relu(self.norm_two(self.two(y)) + self.beside(x))


def resnet() -> nn.Module:
    """Eight blocks of a ResNet."""
    widths = (16, 16, 16, 32, 32, 64, 64, 128, 128)
    blocks = (Residual(a, b) for a, b in zip(widths, widths[1:], strict=False))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
    )


class Recurrent(nn.Module):
    """A cell that goes over a sequence word by word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(WORDS, WIDE), nn.GRUCell(WIDE, WIDE)
        self.head = nn.Linear(WIDE, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next words."""
        words = self.embed(ids)
        state = torch.zeros(len(ids), WIDE, device=ids.device)
        states = []
        for at in range(ids.shape[1]):
            state = self.cell(words[:, at], state)
            states.append(state)
        return self.head(torch.stack(states, dim=1))


class Experts(nn.Module):
    """Layers of experts with a limited capacity of words each."""

    def __init__(self, layers: int = 4, experts: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDE)
        self.gates = nn.ModuleList(nn.Linear(WIDE, experts) for _ in range(layers))
        expert = lambda: nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.GELU(), nn.Linear(2 * WIDE, WIDE))  # noqa: E731
        self.experts = nn.ModuleList(nn.ModuleList(expert() for _ in range(experts)) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        """States of words."""
        x = self.embed(ids).flatten(0, 1)
        for gate, experts in zip(self.gates, self.experts, strict=True):
            shares = torch.softmax(gate(x), dim=-1)
            room = len(x) // 2
            places = shares.topk(room, dim=0).indices.clamp(0, len(x) - 1)
            out = torch.zeros_like(x)
            for at, expert in enumerate(experts):
                chosen = places[:, at]
                out = out.index_add(0, chosen, expert(x[chosen]) * shares[chosen, at, None])
            x = x + out
        return x


class Graph(nn.Module):
    """Messages along edges."""

    def __init__(self, rounds: int = 9) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * WIDE, WIDE) for _ in range(rounds))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """New states of nodes."""
        for layer in self.layers:
            messages = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
            nodes = functional.relu(layer(torch.cat([nodes, messages], dim=-1)))
        return nodes


def graph() -> Batch:
    """A random graph."""
    return torch.rand(256, WIDE).cuda(), torch.randint(0, 256, (2, 1024)).cuda()


class Rivals(nn.Module):
    """A generator of pictures and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 3 * 32 * 32))
        self.judge = nn.Sequential(nn.Conv2d(3, 16, 4, 2), nn.LeakyReLU(), nn.Conv2d(16, 32, 4, 2), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        """The discriminator's scores of a real and a generated picture."""
        made = self.maker(torch.rand(len(x), 32, device=x.device)).view(-1, 3, 32, 32)
        return self.judge(x) - self.judge(made)


def denoise(model: nn.Module, batch: Batch) -> Tensor:
    """A diffusion's sampling, with eight calls per prediction."""
    (x,) = batch
    for _ in range(8):
        x = x - 0.1 * model(x)
    return x


def noised(model: nn.Module, batch: Batch) -> Tensor:
    """A diffusion's loss."""
    (x,) = batch
    noise = torch.randn_like(x)
    return functional.mse_loss(model(x + noise), noise)


def of_transformers(name: str) -> Case:
    """GPT-2 and Llama from the transformers library."""
    import transformers

    if name == "gpt2":
        config: Any = transformers.GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=WIDE, n_layer=6, n_head=4)
        make: Callable[[], nn.Module] = lambda: transformers.GPT2LMHeadModel(config)  # noqa: E731
    else:
        config = transformers.LlamaConfig(
            vocab_size=WORDS,
            hidden_size=WIDE,
            intermediate_size=256,
            num_hidden_layers=9,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
        make = lambda: transformers.LlamaForCausalLM(config)  # noqa: E731
    return Case(
        name,
        make,
        tokens,
        lambda model, batch: model(input_ids=batch[0], labels=batch[0]).loss,
        lambda model, batch: model(input_ids=batch[0]).logits,
    )


def of_lightning() -> Case:
    """A model that Lightning's loop trains."""
    import lightning.pytorch as pl

    class Lit(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Words()
            self.optimizer_of: OptimizerOf | None = None
            self.watch: Watch | None = None

        def forward(self, ids: Tensor) -> Tensor:
            return self.net(ids)

        def training_step(self, batch: Any, _: int) -> Tensor:
            begin = requests()
            loss = scalar(self.net(batch))
            if self.watch is not None:
                self.watch.passed(self, begin)
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            optimizer: Any = self.optimizers()
            if self.watch is not None:
                self.watch.stepped(self, optimizer.optimizer)

        def configure_optimizers(self) -> Any:
            assert self.optimizer_of is not None
            return self.optimizer_of(self)

    def fit(model: nn.Module, steps: int, optimizer_of: OptimizerOf, watch: Watch) -> None:
        assert isinstance(model, Lit)
        model.optimizer_of, model.watch = optimizer_of, watch
        data: Any = torch.randint(0, WORDS, (4 * steps, 64))
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        trainer = pl.Trainer(
            max_steps=steps,
            accelerator="cuda",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader)

    return Case("lightning", Lit, tokens, fit=fit)


CASES: dict[str, Callable[[], Case]] = {
    "encoder": lambda: Case("encoder", Words, tokens),
    "vision": lambda: Case("vision", Vision, images),
    "checkpointed": lambda: Case("checkpointed", Recomputed, tokens),
    "blocks": lambda: Case("blocks", plain_blocks, lambda: (torch.rand(4, 64, WIDE).cuda(),)),
    "unet": lambda: Case("unet", UNet, images),
    "resnet": lambda: Case("resnet", resnet, images),
    "recurrent": lambda: Case("recurrent", Recurrent, tokens),
    "experts": lambda: Case("experts", Experts, tokens),
    "diffusion": lambda: Case("diffusion", UNet, images, noised, denoise, calls_each=8),
    "graph": lambda: Case("graph", Graph, graph),
    "rivals": lambda: Case("rivals", Rivals, images),
    "gpt2": lambda: of_transformers("gpt2"),
    "llama": lambda: of_transformers("llama"),
    "lightning": of_lightning,
}
