"""The class of each block: memctl's classes compared with PyTorch's own lists, block by block, on four models.

A script trains as scripts do (a data loader, no word about memctl) and writes which storage is a parameter's, a
gradient's or an optimizer state's: after an epoch's last step, and once in the middle of a step, with what autograd
keeps (the activations). memctl does not see these lists: it uses stacks, marks and lifetimes.
"""

from __future__ import annotations

import collections
import csv
import importlib.util
import io
import json
import pathlib
import sys
from typing import Any

import pytest

from conftest import Memctl

# The share of the bytes that has to be right, per model.
RIGHT_MIN = 0.95
EPOCHS = 3
# Epoch ends that are compared: optimizer state is created in the first epoch and no longer changes in the last.
CHECKED = (0, EPOCHS - 1)
LISTED = {"parameters", "gradients", "optimizer_state"}
NOT_LISTED = "not listed"

TRAINING = """
import contextlib, json, os, pathlib, sys, weakref
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import small

EPOCHS, FOLDER, WITHIN = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
# Allocated for a moment: what lives then is what memctl shows as the peak.
BALLAST = 96 << 20

class Saved:
    # Lives as long as autograd keeps this tensor.
    def __init__(self, tensor):
        self.tensor = tensor

saved = weakref.WeakSet()
averaged = []

def pack(tensor):
    kept = Saved(tensor)
    saved.add(kept)
    return kept

def tell(name, model, optimizer, inputs=()):
    known = {}
    def add(tensor, kind):
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            storage = tensor.untyped_storage()
            known.setdefault(storage.data_ptr(), [storage.nbytes(), kind])
    for tensor in [*model.parameters(), *model.buffers(), *averaged]:
        add(tensor, "parameters")
    for parameter in model.parameters():
        add(parameter.grad, "gradients")
    for state in optimizer.state.values():
        for value in state.values():
            add(value, "optimizer_state")
    for tensor in inputs:
        add(tensor, "inputs")
    for kept in list(saved):
        add(kept.tensor, "activations")
    listed = {hex(address): entry for address, entry in known.items() if entry[1] != "inputs"}
    (FOLDER / f"truth-{name}.json").write_text(json.dumps(listed))

def train(model, optimizer, loader, loss_of, middle, clip=None, every=1, autocast=False):
    for epoch in range(EPOCHS):
        model.train()
        for step, (inputs, targets) in enumerate(loader):
            inputs, targets = inputs.cuda(), targets.cuda()
            def peak(*_):
                tell("peak", model, optimizer, (inputs, targets))
                torch.empty(BALLAST, dtype=torch.uint8, device="cuda")
            looked_at = (epoch, step) == (1, 3)
            with contextlib.ExitStack() as within:
                if looked_at:
                    within.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor))
                    if WITHIN == "backward":
                        hook = lambda module, inputs, output: output.register_hook(peak) and None
                        within.callback(middle.register_forward_hook(hook).remove)
                if autocast:
                    within.enter_context(torch.autocast("cuda", torch.bfloat16))
                if step % every == 0:
                    optimizer.zero_grad()
                loss = loss_of(model(inputs), targets)
            if looked_at and WITHIN == "forward":
                peak()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if step % every == every - 1:
                optimizer.step()
        tell(epoch, model, optimizer)
        print(epoch, loss.item(), flush=True)
    assert (FOLDER / "truth-peak.json").exists()
"""

# A transformer with tied weights under AdamW: autocast, gradients clipped and accumulated over two steps.
TRANSFORMER = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.second(x))

class Model(nn.Module):
    def __init__(self, words=512, width=128, length=32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
    def forward(self, ids):
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, 512, (32, 33))
loader = DataLoader(TensorDataset(ids[:, :-1].clone(), ids[:, 1:].clone()), batch_size=4)
loss_of = lambda out, wanted: nn.functional.cross_entropy(out.flatten(0, 1), wanted.flatten())
train(model, optimizer, loader, loss_of, model.blocks[1], clip=1.0, every=2, autocast=True)
"""

# A CNN, made on the device, under SGD with momentum; a copy with averaged weights beside it.
CNN = """
def layer(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())

torch.manual_seed(0)
with torch.device("cuda"):
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * 128, 10)]
    model = nn.Sequential(layer(3, 32), layer(32, 64), nn.MaxPool2d(2), layer(64, 128), layer(128, 128), *head)
copy = torch.optim.swa_utils.AveragedModel(model)
averaged += [*copy.parameters(), *copy.buffers()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
optimizer.register_step_post_hook(lambda *_: copy.update_parameters(model))
loader = DataLoader(TensorDataset(torch.randn(24, 3, 16, 16), torch.randint(0, 10, (24,))), batch_size=4)
train(model, optimizer, loader, nn.functional.cross_entropy, model[3])
"""

# An LSTM under Adam, model and optimizer resumed from a checkpoint.
LSTM = """
class Model(nn.Module):
    def __init__(self, words=256, width=96):
        super().__init__()
        self.words, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, words)
    def forward(self, ids):
        out, _ = self.lstm(self.words(ids))
        return self.head(self.drop(out))

torch.manual_seed(0)
device = torch.device("cuda")
model = Model().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
moments = {at: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(p.shape), "exp_avg_sq": torch.ones(p.shape)}
           for at, p in enumerate(model.parameters())}
optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
model.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
ids = torch.randint(0, 256, (24, 17))
loader = DataLoader(TensorDataset(ids[:, :-1].clone(), ids[:, 1:].clone()), batch_size=4)
loss_of = lambda out, wanted: nn.functional.cross_entropy(out.flatten(0, 1), wanted.flatten())
train(model, optimizer, loader, loss_of, model.drop)
"""

# Lightning, which calls forward and backward from within the optimizer's step.
LIGHTNING = """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(256, 10)

    def forward(self, inputs):
        return self.head(self.layers(inputs))

    def training_step(self, batch, index):
        inputs, targets = batch
        def peak(*_):
            tell("peak", self, self.optimizers().optimizer, (inputs, targets))
            torch.empty(BALLAST, dtype=torch.uint8, device="cuda")
        with contextlib.ExitStack() as within:
            if (self.current_epoch, index) == (1, 3):
                within.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor))
                hook = lambda module, inputs, output: output.register_hook(peak) and None
                within.callback(self.layers[5].register_forward_hook(hook).remove)
            return nn.functional.cross_entropy(self(inputs), targets)

    def on_train_epoch_end(self):
        tell(self.current_epoch, self, self.optimizers().optimizer)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 256), torch.randint(0, 10, (96,))), batch_size=16)
lightning.Trainer(
    accelerator="gpu", devices=1, max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Module(), loader)
assert (FOLDER / "truth-peak.json").exists()
"""


def blocks(memctl: Memctl, job: str, *moment: str) -> list[dict[str, str]]:
    run = memctl("ledger", "--job", job, "--rank", "0", *moment, "--blocks", "-o", "csv")
    assert run.code == 0, run
    return list(csv.DictReader(io.StringIO(run.out)))


class Compared:
    """memctl's classes against the truth, in bytes: for blocks that PyTorch lists or that memctl gives a listed class.

    Blocks that neither of them classifies are left out: they must not count as right.
    """

    def __init__(self, found: list[dict[str, str]], truth: dict[str, tuple[int, str]]) -> None:
        self.confusion: collections.Counter[tuple[str, str]] = collections.Counter()
        self.wrong: collections.Counter[tuple[Any, ...]] = collections.Counter()
        self.right = self.all = 0
        left = dict(truth)
        for block in found:
            size, named = int(block["bytes"]), block["class"]
            least, wanted = left.pop(block["address"], (0, NOT_LISTED))
            assert least <= size, (block, least)
            self.add(wanted, named, size)
            if not is_right(wanted, named):
                site = (block["birth_step"], block["birth_phase"], block["function"], block["line"])
                self.wrong[(wanted, named, *site)] += size
        # A block that PyTorch lists and memctl does not know is wrong, too.
        for least, wanted in left.values():
            self.add(wanted, "no block", least)

    def add(self, wanted: str, named: str, size: int) -> None:
        self.confusion[(wanted, named)] += size
        if wanted != NOT_LISTED or named in LISTED:
            self.all += size
            self.right += size if is_right(wanted, named) else 0

    @property
    def share(self) -> float:
        return self.right / self.all

    def __repr__(self) -> str:
        lines = [f"{100 * self.share:.2f} % of {self.all} bytes are right; listed as, called, bytes:"]
        lines += [f"  {wanted:16} {named:16} {size:10}" for (wanted, named), size in self.confusion.most_common()]
        lines += ["wrong: listed as, called, born in step, in phase, in, line, bytes:"]
        lines += [f"  {what} {size}" for what, size in self.wrong.most_common(12)]
        return "\n".join(lines)


def is_right(wanted: str, named: str) -> bool:
    return named == wanted or (wanted == NOT_LISTED and named not in LISTED)


@pytest.mark.parametrize(
    ("job", "text", "within"),
    [
        ("transformer", TRANSFORMER, "backward"),
        ("cnn", CNN, "backward"),
        ("lstm", LSTM, "forward"),
        ("lightning", LIGHTNING, "backward"),
    ],
)
def test_classes_are_what_pytorch_lists(
    memctl: Memctl, script: Any, tmp_path: pathlib.Path, job: str, text: str, within: str
) -> None:
    if job == "lightning" and importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    run = memctl.record(job, sys.executable, str(script(TRAINING + text)), str(EPOCHS), str(tmp_path), within)
    assert run.code == 0, run
    moments = {str(epoch): ["--epoch-end", str(epoch)] for epoch in CHECKED} | {"peak": ["--peak"]}
    for name, moment in moments.items():
        recorded = json.loads((tmp_path / f"truth-{name}.json").read_text())
        truth = {address: (size, kind) for address, (size, kind) in recorded.items()}
        missing = (LISTED | {"activations"} if name == "peak" else LISTED) - {kind for _, kind in truth.values()}
        # There are no gradients in the forward pass.
        assert missing == ({"gradients"} if name == "peak" and within == "forward" else set()), (name, missing)
        compared = Compared(blocks(memctl, job, *moment), truth)
        print(f"{job}, {name}: {compared}")
        assert compared.share >= RIGHT_MIN, f"{job}, {name}: {compared}"
