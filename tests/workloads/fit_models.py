"""Truth for `memctl fit` without a GPU: six small models, trained for a few steps each at several batch sizes.

    RUN=$(tests/fakegpu/setup 2.11.0); $RUN python tests/workloads/fit_models.py MODEL BATCH [plain|ckpt] [FOLDER]

Prints one JSON row with the peaks from torch's own `memory_stats()`. With FOLDER the run is recorded, too, as
FOLDER/MODEL_MODE_bBATCH.pickle. Needs nothing but torch; cuDNN is switched off, because the fake GPU has none, so
convolutions and the LSTM allocate what the native kernels do. `ckpt` wraps every block of a model in
`torch.utils.checkpoint` (only the models that have blocks: encoder, vit, mixer, unet).
"""

from __future__ import annotations

import json
import os
import pickle
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

CHECKPOINTED = False
STEPS = 4


def block(module: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """Calls a block, with checkpointing if it is switched on."""
    return checkpoint(module, *inputs, use_reentrant=False) if CHECKPOINTED else module(*inputs)


class EncoderBlock(nn.Module):
    """A transformer's block with attention that is written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / (d // self.heads) ** 0.5
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """Masked language modelling with a transformer encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12000, 384), nn.Embedding(256, 384)
        self.blocks = nn.ModuleList(EncoderBlock(384, 6) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 12000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for module in self.blocks:
            x = block(module, x)
        return self.head(self.norm(x))

    def loss(self, batch: int) -> torch.Tensor:
        ids = torch.randint(0, 12000, (batch, 256), device="cuda")
        return F.cross_entropy(self(ids).flatten(0, 1), ids.flatten())


class Recurrent(nn.Module):
    """Language modelling with an LSTM of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.rnn = nn.Embedding(10000, 512), nn.LSTM(512, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 10000)

    def loss(self, batch: int) -> torch.Tensor:
        ids = torch.randint(0, 10000, (batch, 64), device="cuda")
        hidden, _ = self.rnn(self.tokens(ids))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), ids.flatten())


class Vgg(nn.Module):
    """Image classification with plain convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs in (32, 32, 0, 64, 64, 0, 128, 128, 0, 256, 256, 0):
            if outputs == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(256 * 36, 1024), nn.ReLU(), nn.Dropout(), nn.Linear(1024, 100))

    def loss(self, batch: int) -> torch.Tensor:
        image, label = torch.randn(batch, 3, 96, 96, device="cuda"), torch.randint(0, 100, (batch,), device="cuda")
        return F.cross_entropy(self.head(self.features(image).flatten(1)), label)


class Double(nn.Module):
    """Two convolutions: a block of the U-Net."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    """Segmentation with a U-Net of four levels."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256)
        self.down = nn.ModuleList(Double(a, b) for a, b in zip(widths, widths[1:]))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in (128, 64, 32))
        self.up = nn.ModuleList(Double(2 * w, w) for w in (128, 64, 32))
        self.head = nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for level, module in enumerate(self.down):
            x = block(module, x if level == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for rise, module in zip(self.rise, self.up):
            x = block(module, torch.cat([kept.pop(), rise(x)], 1))
        return self.head(x)

    def loss(self, batch: int) -> torch.Tensor:
        image = torch.randn(batch, 3, 96, 96, device="cuda")
        label = torch.randint(0, 4, (batch, 96, 96), device="cuda")
        # (cross_entropy over images is written out: its kernel asserts on what the fake GPU leaves in memory.)
        scores = self(image).permute(0, 2, 3, 1).flatten(0, 2)
        return F.cross_entropy(scores, label.flatten())


class Vit(nn.Module):
    """Image classification with a vision transformer; PyTorch's own encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 256, 8, 8), nn.Parameter(torch.zeros(1, 145, 256))
        self.token = nn.Parameter(torch.zeros(1, 1, 256))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(256, 4, 1024, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(6)
        )
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 100)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        for module in self.blocks:
            x = block(module, x)
        return self.head(self.norm(x)[:, 0])

    def loss(self, batch: int) -> torch.Tensor:
        image, label = torch.randn(batch, 3, 96, 96, device="cuda"), torch.randint(0, 100, (batch,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(self(image), label)


class Mix(nn.Module):
    """A block of the mixer: one perceptron over patches, one over channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_patches = nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches))
        self.over_channels = nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.over_patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm2(x))


class Mixer(nn.Module):
    """Image classification with perceptrons only."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 256, 8, 8)
        self.blocks = nn.ModuleList(Mix(144, 256) for _ in range(8))
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 100)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for module in self.blocks:
            x = block(module, x)
        return self.head(self.norm(x).mean(1))

    def loss(self, batch: int) -> torch.Tensor:
        image, label = torch.randn(batch, 3, 96, 96, device="cuda"), torch.randint(0, 100, (batch,), device="cuda")
        return F.cross_entropy(self(image), label)


MODELS = {"encoder": Encoder, "lstm": Recurrent, "vgg": Vgg, "unet": UNet, "vit": Vit, "mixer": Mixer}


def main() -> None:
    global CHECKPOINTED
    name, batch, mode = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or ["plain"])[0]
    folder = sys.argv[4] if len(sys.argv) > 4 else None
    CHECKPOINTED = mode == "ckpt"
    torch.backends.cudnn.enabled = False
    torch.manual_seed(1)
    torch.cuda.init()
    if folder:
        torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=2_000_000)
    model = MODELS[name]().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model.loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    row = {"model": name, "batch": batch, "mode": mode}
    row |= {key: stats[f"{key[5:]}_bytes.all.peak"] for key in ("peak_reserved", "peak_allocated")}
    print(json.dumps(row), flush=True)
    if folder:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{name}_{mode}_b{batch}.pickle"), "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)


if __name__ == "__main__":
    main()
