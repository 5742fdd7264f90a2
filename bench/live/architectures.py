"""Snapshots without marks of small models of many kinds, and the truth of each: `architectures.py FOLDER [NAME ...]`.

Every model is recorded in one forward pass, in a few and in many passes without gradients, and in one, three and ten
steps with each of three optimizers, with Python's stacks and with all stacks. `NAME.json` beside `NAME.pickle` has the
number of steps or calls, and the storages that were live at the peak and at the end, each with its class. Data and
weights are random. Only memory matters, so kernels may do nothing.
"""

from __future__ import annotations

import gc
import json
import pickle
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import architecture_models as models
import torch
from architecture_models import requests
from torch import Tensor, nn
from torch.nn import functional

KINDS = ("forward", "few_calls", "inference", "one_step", "three_steps", "ten_steps")
STEPS = {"one_step": 1, "three_steps": 3, "ten_steps": 10}
CALLS = {"forward": 1, "few_calls": 4, "inference": 12}
OPTIMIZERS = ("adamw", "sgd", "by_hand")
STACKS = ("python", "all")


def workspaces() -> frozenset[int]:
    """The sizes of the workspaces of matrix libraries: the blocks that are freed when the workspaces are cleared."""
    functional.linear(torch.rand(8, 8).cuda(), torch.rand(8, 8).cuda(), torch.rand(8).cuda())
    before = lived(torch.cuda.memory._snapshot())
    torch._C._cuda_clearCublasWorkspaces()
    after = lived(torch.cuda.memory._snapshot())
    return frozenset(size for address, size in before.items() if address not in after)


def lived(snapshot: dict[str, Any]) -> dict[int, int]:
    """Sizes of the blocks that were live, by address."""
    blocks = (block for segment in snapshot["segments"] for block in segment["blocks"])
    return {block["address"]: block["size"] for block in blocks if block["state"] == "active_allocated"}


@dataclass
class Truth:
    """The classes of storages that the loops know."""

    workspaces: frozenset[int]
    begin: int = 0
    notes: list[tuple[str, int, int]] = field(default_factory=list)
    parts: list[tuple[str, int, int]] = field(default_factory=list)

    def own(self, kind: str, tensors: Iterable[Tensor | None]) -> None:
        """Records that these tensors are live now."""
        now = requests()
        for tensor in tensors:
            if tensor is not None and tensor.is_cuda:
                self.notes.append((kind, tensor.untyped_storage().data_ptr(), now))

    def part(self, kind: str, begin: int) -> None:
        """Records the class of requests since then that have no other class."""
        self.parts.append((kind, begin, requests()))


class ByHand:
    """Two moments for each parameter, without a class of torch.optim and without telling names."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.weights = [weight for weight in parameters if weight.requires_grad]
        self.first: list[Tensor] = []
        self.second: list[Tensor] = []

    @torch.no_grad()
    def update(self) -> None:
        """One step of Adam without bias correction."""
        if not self.first:
            self.first = [torch.zeros_like(weight) for weight in self.weights]
            self.second = [torch.zeros_like(weight) for weight in self.weights]
        used = [at for at, weight in enumerate(self.weights) if weight.grad is not None]
        weights = [self.weights[at] for at in used]
        slopes = [weight.grad for weight in weights if weight.grad is not None]
        first, second = [self.first[at] for at in used], [self.second[at] for at in used]
        torch._foreach_mul_(first, 0.9)
        torch._foreach_add_(first, slopes, alpha=0.1)
        torch._foreach_mul_(second, 0.99)
        torch._foreach_addcmul_(second, slopes, slopes, value=0.01)
        below = torch._foreach_sqrt(second)
        torch._foreach_add_(below, 1e-8)
        torch._foreach_addcdiv_(weights, first, below, value=-1e-3)

    def forget(self) -> None:
        """Frees the gradients."""
        for weight in self.weights:
            weight.grad = None

    def held(self) -> list[Tensor]:
        """Its state."""
        return [*self.first, *self.second]


def held_by(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The state of one of torch's optimizers."""
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """One of torch's optimizers."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def own_model(truth: Truth, model: nn.Module) -> None:
    """Its parameters and buffers."""
    truth.own("parameters", model.parameters())
    truth.own("buffers", model.buffers())


def own_step(truth: Truth, model: nn.Module, state: list[Tensor]) -> None:
    """Records the memory of a step that may stay."""
    truth.own("gradients", (weight.grad for weight in model.parameters()))
    truth.own("optimizer", state)


@dataclass
class Watcher:
    """Records the memory of a trainer's loop."""

    truth: Truth

    def passed(self, model: nn.Module, begin: int) -> None:
        """Called after a forward pass, when the trainer has moved the model to the device."""
        own_model(self.truth, model)
        self.truth.part("activations", begin)

    def stepped(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """A step is over."""
        own_step(self.truth, model, held_by(optimizer))


def train(case: models.Case, model: nn.Module, steps: int, name: str, truth: Truth) -> None:
    """The loop of most tutorials."""
    optimizer = optimizer_of(name, model)
    for _ in range(steps):
        begin = requests()
        batch = case.batch()
        truth.own("inputs", batch)
        optimizer.zero_grad()
        loss = case.loss(model, batch)
        truth.part("activations", begin)
        loss.backward()
        own_step(truth, model, [])
        optimizer.step()
        own_step(truth, model, held_by(optimizer))
    case.kept = [optimizer]


def step_by_hand(case: models.Case, model: nn.Module, rule: ByHand, truth: Truth) -> float:
    """One step in a function of its own."""
    begin = requests()
    batch = case.batch()
    truth.own("inputs", batch)
    loss = case.loss(model, batch)
    truth.part("activations", begin)
    loss.backward()
    own_step(truth, model, [])
    rule.update()
    own_step(truth, model, rule.held())
    rule.forget()
    return float(loss.detach())


def train_by_hand(case: models.Case, model: nn.Module, steps: int, truth: Truth) -> None:
    """A loop without an optimizer of torch."""
    rule = ByHand(model.parameters())
    for _ in range(steps):
        step_by_hand(case, model, rule, truth)
    case.kept = [rule]


def forward(case: models.Case, model: nn.Module, truth: Truth) -> None:
    """One pass with gradients, whose loss is kept."""
    begin = requests()
    batch = case.batch()
    truth.own("inputs", batch)
    case.kept = [case.loss(model, batch), batch]
    truth.part("activations", begin)


def inference(case: models.Case, model: nn.Module, calls: int, truth: Truth) -> None:
    """Passes without gradients."""
    with torch.no_grad():
        for _ in range(calls):
            begin = requests()
            batch = case.batch()
            truth.own("inputs", batch)
            case.predict(model, batch)
            truth.part("activations", begin)


def run(case: models.Case, model: nn.Module, kind: str, optimizer: str | None, truth: Truth) -> None:
    """Runs the program that is recorded."""
    if case.fit is not None and optimizer is not None and optimizer != "by_hand":
        case.fit(model, STEPS[kind], lambda it: optimizer_of(optimizer, it), Watcher(truth))
    elif optimizer == "by_hand":
        train_by_hand(case, model, STEPS[kind], truth)
    elif optimizer is not None:
        train(case, model, STEPS[kind], optimizer, truth)
    elif kind == "forward":
        forward(case, model, truth)
    else:
        inference(case, model, CALLS[kind], truth)


def classes(truth: Truth, trace: list[dict[str, Any]]) -> dict[int, str]:
    """The class of each recorded request, by its number in this process."""
    given: dict[int, list[int]] = {}
    found: dict[int, str] = {}
    number = truth.begin
    for entry in trace:
        if entry["action"] == "alloc":
            number += 1
            if entry["size"] in truth.workspaces:
                found[number] = "workspace"
            given.setdefault(entry["addr"], []).append(number)
    for kind, begin, end in truth.parts:
        for number in range(begin + 1, end + 1):
            found.setdefault(number, kind)
    for kind, address, now in truth.notes:
        before = [number for number in given.get(address, []) if number <= now]
        if before:
            found[before[-1]] = kind
    return found


def lives(truth: Truth, snapshot: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Storages at the peak and at the end: reconstructed backwards from the end, then forwards again."""
    trace = [it for it in snapshot["device_traces"][0] if it["action"] in ("alloc", "free_requested")]
    found, early = classes(truth, trace), {address: kind for kind, address, _ in truth.notes}
    begin = lived(snapshot)
    for entry in reversed(trace):
        if entry["action"] == "alloc":
            begin.pop(entry["addr"], None)
        else:
            begin[entry["addr"]] = entry["size"]
    # A block from before the recording has the class that was recorded last at its address while it was live.
    early.update((address, "workspace") for address, size in begin.items() if size in truth.workspaces)
    now = {address: (size, early.get(address, "unknown")) for address, size in begin.items()}
    number, live = truth.begin, sum(begin.values())
    most, peak = live, dict(now)
    for entry in trace:
        if entry["action"] == "alloc":
            number += 1
            live += entry["size"]
            now[entry["addr"]] = (entry["size"], found.get(number, "other"))
        else:
            live -= now.pop(entry["addr"], (entry["size"], ""))[0]
        if live > most:
            most, peak = live, dict(now)

    def rows(blocks: dict[int, tuple[int, str]]) -> list[dict[str, Any]]:
        return [{"address": at, "bytes": size, "class": kind} for at, (size, kind) in sorted(blocks.items())]

    return {"peak": rows(peak), "end": rows(now)}


def record(
    case: models.Case, kind: str, optimizer: str | None, stacks: str, folder: Path, sizes: frozenset[int]
) -> None:
    """One file and its label."""
    name = "-".join(part for part in (case.name, kind, optimizer, stacks) if part)
    # Half of the recordings include the creation of the model, the others begin after a step or a call.
    from_the_start = (KINDS.index(kind) + STACKS.index(stacks) + len(case.name)) % 2 == 0
    truth = Truth(sizes)

    def begin() -> None:
        truth.begin = requests()
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks=stacks)

    if from_the_start:
        begin()
    model = case.make().cuda()
    own_model(truth, model)
    if not from_the_start:
        run(case, model, "forward", None, Truth(sizes))
        case.kept = []
        gc.collect()
        begin()
    run(case, model, kind, optimizer, truth)
    snapshot = torch.cuda.memory._snapshot()
    # Newer versions of torch mark each optimizer's step; older ones and hand-written loops do not.
    snapshot["external_annotations"] = []
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.memory._record_memory_history(enabled=None)
    with (folder / f"{name}.pickle").open("wb") as file:
        pickle.dump(snapshot, file)
    label = {
        "architecture": case.name,
        "kind": kind,
        "optimizer": optimizer,
        "stacks": stacks,
        "from_the_start": from_the_start,
        "steps": STEPS.get(kind, 0),
        "calls": CALLS.get(kind, 0) * case.calls_each,
        "predictions": CALLS.get(kind, 0),
        **lives(truth, snapshot),
    }
    (folder / f"{name}.json").write_text(json.dumps(label))
    case.kept = []
    del model, snapshot
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    """Records all, or those whose names are given."""
    folder, *names = sys.argv[1:]
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.enabled = False
    sizes = workspaces()
    cases: dict[str, Callable[[], models.Case]] = models.CASES
    for name in names or cases:
        case = cases[name]()
        for stacks in STACKS:
            for kind in KINDS:
                for optimizer in OPTIMIZERS if kind in STEPS else (None,):
                    record(case, kind, optimizer, stacks, target, sizes)
        print(name, flush=True)


if __name__ == "__main__":
    main()
