"""Image models in usual training code: residual nets, several optimizers, several tasks, unfreezing, distillation.

`python vision.py NAME` trains one. Nothing here leaks; the benchmark adds the leaks. Epochs and steps are not marked.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.backends.cudnn.enabled = False


def loader(samples: int, batch: int, side: int = 32) -> DataLoader[tuple[torch.Tensor, ...]]:
    images = torch.zeros(samples, 3, side, side)
    return DataLoader(TensorDataset(images, torch.randint(0, 10, (samples,))), batch_size=batch, shuffle=True)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class Net(nn.Module):
    def __init__(self, channels: int = 24, blocks: int = 3, out: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, out)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(F.max_pool2d(self.stem(x), 2)).mean(dim=(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def validate(model: nn.Module, data: Iterable[tuple[torch.Tensor, ...]]) -> int:
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, label in data:
            correct += int((model(images.cuda()).argmax(1) == label.cuda()).sum().item())
    model.train()
    return correct


def residual(epochs: int = 12) -> None:
    """Validates every 40 steps, not at the ends of epochs."""
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    train, held_out, steps = loader(16 * 25, 16), loader(32, 16), 0
    for _ in range(epochs):
        for images, label in train:
            loss = F.cross_entropy(model(images.cuda(non_blocking=True)), label.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % 40 == 0:
                validate(model, held_out)


def accumulation(epochs: int = 10) -> None:
    """Four batches per step, and a loss scaler."""
    model = Net(blocks=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")  # pyright: ignore[reportPrivateImportUsage]
    for _ in range(epochs):
        for place, (images, label) in enumerate(loader(8 * 80, 8)):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(images.cuda()), label.cuda()) / 4
            scaler.scale(loss).backward()
            if place % 4 == 3:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def find_rate(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Tries rising rates on a copy of the state, then puts it back."""
    kept, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    losses = []
    for step, (images, label) in enumerate(loader(16 * 30, 16)):
        for group in optimizer.param_groups:
            group["lr"] = 1e-5 * 1.3**step
        loss = F.cross_entropy(model(images.cuda()), label.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.load_state_dict(kept)
    optimizer.load_state_dict(state)
    return 1e-3


def rate_finder(epochs: int = 10) -> None:
    model = Net(blocks=2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    rate = find_rate(model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = rate
    for _ in range(epochs):
        for images, label in loader(16 * 24, 16):
            loss = F.cross_entropy(model(images.cuda()), label.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        validate(model, loader(32, 16))


def unfreezing(epochs: int = 12) -> None:
    """Trains the head first. Every third epoch another block is added, with its own optimizer state."""
    model = Net(blocks=3).cuda()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.head.parameters())
    for epoch in range(epochs):
        if epoch in (3, 6, 9):
            block = model.blocks[3 - epoch // 3]
            block.requires_grad_(True)
            optimizer.add_param_group({"params": list(block.parameters())})
        for images, label in loader(16 * 24, 16):
            loss = F.cross_entropy(model(images.cuda()), label.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        validate(model, loader(32, 16))


def generator() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 24 * 16 * 16), nn.Unflatten(1, (24, 16, 16)), nn.Upsample(scale_factor=2),
        nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 3, 3, padding=1), nn.Tanh(),
    )  # fmt: skip


def adversarial(epochs: int = 10) -> None:
    """Two alternating optimizers."""
    make, judge = generator().cuda(), Net(blocks=1, out=1).cuda()
    for_make = torch.optim.Adam(make.parameters(), betas=(0.5, 0.999))
    for_judge = torch.optim.Adam(judge.parameters(), betas=(0.5, 0.999))
    real, fake = torch.ones(16, 1, device="cuda"), torch.zeros(16, 1, device="cuda")
    noise = torch.zeros(16, 64, device="cuda")
    for _ in range(epochs):
        for images, _label in loader(16 * 24, 16):
            made = make(noise)
            for_judge.zero_grad()
            loss = F.binary_cross_entropy_with_logits(judge(images.cuda()), real)
            loss = loss + F.binary_cross_entropy_with_logits(judge(made.detach()), fake)
            loss.backward()
            for_judge.step()
            for_make.zero_grad()
            F.binary_cross_entropy_with_logits(judge(made), real).backward()
            for_make.step()


class ManyTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = Net(blocks=2)
        self.heads = nn.ModuleDict({name: nn.Linear(24, n) for name, n in (("kind", 10), ("pose", 6), ("age", 1))})
        self.scale = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.heads})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.trunk.features(x)
        return {name: head(features) for name, head in self.heads.items()}


def many_tasks(epochs: int = 10) -> None:
    model = ManyTasks().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    running = torch.zeros(3, device="cuda")
    for _ in range(epochs):
        for images, label in loader(16 * 26, 16):
            out, label = model(images.cuda()), label.cuda()
            losses = {
                "kind": F.cross_entropy(out["kind"], label),
                "pose": out["pose"].square().mean(),
                "age": F.l1_loss(out["age"].squeeze(1), label.float()),
            }
            loss = torch.stack([torch.exp(-model.scale[name]) * value for name, value in losses.items()]).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            running = 0.9 * running + 0.1 * torch.stack([value.detach() for value in losses.values()])
        validate(model.trunk, loader(32, 16))


def distillation(epochs: int = 10) -> None:
    """A frozen teacher beside the student; the evaluation runs with gradients on and releases them."""
    teacher, student = Net(blocks=4).cuda().eval(), Net(blocks=1).cuda()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        student.train()
        for images, label in loader(16 * 24, 16):
            images, label = images.cuda(), label.cuda()
            with torch.no_grad():
                soft = teacher(images).softmax(1)
            logits = student(images)
            loss = F.cross_entropy(logits, label) + F.kl_div(logits.log_softmax(1), soft, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        student.eval()
        for images, label in loader(32, 16):
            print(F.cross_entropy(student(images.cuda()), label.cuda()).item())


TRAINED: list[Callable[[], None]] = [
    residual, accumulation, rate_finder, unfreezing, adversarial, many_tasks, distillation,
]  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(1)
    {train.__name__: train for train in TRAINED}[sys.argv[1]]()
