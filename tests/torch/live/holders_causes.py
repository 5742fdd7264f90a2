"""Programs that retain memory, each for another reason: `python holders_causes.py CAUSE…` prints what `find` returns, a
line for each cause. Each cause runs in a process of its own, forked after the import of torch and before CUDA is used.

The blocks are those that are live after some steps and were not before, by the allocator's own snapshot. Run by
`test_holders_causes`, with the Python of a torch on the fake GPU.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import itertools
import json
import os
import sys
import threading
import traceback
from typing import Any, Callable, Optional

import torch

from memctl_agent import _holders, _native

STEPS = 24
SIZE = 20_000
# Far more than a search takes: the result must not depend on the machine's load.
BUDGET_MS = 120_000

KEPT: list[torch.Tensor] = []
CACHE: dict[int, torch.Tensor] = {}
RECORDS: list[dict[str, Any]] = []
ERRORS: list[BaseException] = []
RESULTS: list[Any] = []
LOCAL = threading.local()
LOADERS: list[Any] = []
CALLS = itertools.count()
UNPACKED: list[int] = []


def made() -> torch.Tensor:
    """A tensor of a size that nothing else has."""
    return torch.empty(SIZE, device="cuda")


def live() -> dict[int, int]:
    """Address and bytes of every allocated block."""
    found = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found[block["address"]] = block["size"]
    return found


class Trainer:
    """Keeps tensors in its attributes."""

    def __init__(self) -> None:
        self.history: collections.deque[torch.Tensor] = collections.deque(maxlen=1000)
        self.batches: list[torch.Tensor] = []
        self.last: Optional[torch.Tensor] = None


class Mlp(torch.nn.Module):
    """A small model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.ReLU(), torch.nn.Linear(100, 100))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


TRAINER = Trainer()
MODEL = Mlp()


def in_list() -> None:
    KEPT.append(made())


def in_list_of_dicts() -> None:
    RECORDS.append({"step": len(RECORDS), "loss": made()})


def in_dict() -> None:
    CACHE[len(CACHE)] = made()


def in_deque() -> None:
    TRAINER.history.append(made())


def in_attribute() -> None:
    TRAINER.last = made()


class Result:
    """One of many equal objects."""

    def __init__(self) -> None:
        self.number, self.scores = len(RESULTS), made()


def in_list_of_objects() -> None:
    RESULTS.append(Result())


def in_class() -> None:
    Trainer.shared = made()  # type: ignore[attr-defined]


class Slotted:
    """A class without `__dict__`."""

    __slots__ = ("kept",)


SLOTTED = Slotted()


def in_slot() -> None:
    SLOTTED.kept = made()


def in_views() -> None:
    KEPT.append(made()[100:200].view(10, 10))


def closing_over() -> Callable[[], None]:
    acts: list[torch.Tensor] = []

    def remember() -> None:
        acts.append(made())

    return remember


REMEMBER = closing_over()


def in_closure() -> None:
    REMEMBER()


def hook_all() -> None:
    """Registers a hook again and again, as a loop over epochs does. All hooks append to one list."""
    acts: list[torch.Tensor] = []

    def register() -> None:
        def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            acts.append(made())

        MODEL.register_forward_hook(hook)

    for _ in range(8):
        register()


hook_all()


def in_hook() -> None:
    # Eight hooks: a third of the steps makes as many tensors.
    if next(CALLS) % 8 == 0:
        MODEL(torch.ones(4, 100, device="cuda"))


def in_exception() -> None:
    def fails() -> None:
        activations = made()
        raise ValueError(f"of {activations.numel()} numbers")

    try:
        fails()
    except ValueError as error:
        ERRORS.append(error)


def in_buffer() -> None:
    MODEL.seen = torch.empty(SIZE, device="cuda")


def in_graph() -> None:
    weight = torch.ones(SIZE, device="cuda", requires_grad=True)
    loss = ((weight * 2).exp() * 3).sum()
    TRAINER.history.append(loss)


def in_gradient() -> None:
    # The parameter itself has another size than the blocks searched for: only its gradient has SIZE elements in memory.
    KEPT.append(weighed())


def weighed() -> torch.Tensor:
    """A parameter with a gradient; the search is for the gradient."""
    parameter = torch.zeros(1, device="cuda").expand(SIZE).requires_grad_()
    parameter.grad = made()
    return parameter


class Keeps(torch.autograd.Function):
    """Keeps a tensor in addition to those that autograd saves."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        ctx.activations = made()
        return inputs.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def in_context() -> None:
    KEPT.append(Keeps.apply(torch.ones(4, device="cuda", requires_grad=True)))


def pack(tensor: torch.Tensor) -> Any:
    return ("packed", tensor)


def unpack(packed: Any) -> torch.Tensor:
    UNPACKED.append(1)
    return packed[1]


def in_packed() -> None:
    # C++ holds what the pack hook returns, and the search must not run the unpack hook.
    inputs = torch.ones(1, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        KEPT.append((inputs.expand(SIZE) * made()).sum())


class Node:
    """Part of a cycle."""


def in_cycle() -> None:
    one, other = Node(), Node()
    one.other, other.one, one.kept = other, one, made()  # type: ignore[attr-defined]


def in_thread_local() -> None:
    if not hasattr(LOCAL, "kept"):
        LOCAL.kept = []
    LOCAL.kept.append(made())


def in_extension() -> None:
    # A reference from C code that the garbage collector does not see.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made()))


FUTURES: list[Any] = []


def in_cpp() -> None:
    # A C++ value: a tensor without its Python object.
    future = torch.futures.Future()
    future.set_result(made())
    FUTURES.append(future)


def in_frame() -> dict[str, Any]:
    before = live()
    losses = []
    for _ in range(STEPS):
        losses.append(made())
    return asked(before)


def in_generator() -> dict[str, Any]:
    def loads() -> Any:
        batches = []
        while True:
            batches.append(made())
            yield len(batches)

    before = live()
    LOADERS.append(loads())
    for _ in range(STEPS):
        next(LOADERS[0])
    return asked(before)


def in_other_thread() -> dict[str, Any]:
    ready, over = threading.Event(), threading.Event()

    def works() -> None:
        mine = [made() for _ in range(STEPS)]
        ready.set()
        over.wait(60)
        mine.clear()

    before = live()
    thread = threading.Thread(target=works)
    thread.start()
    ready.wait(60)
    answer = asked(before)
    over.set()
    thread.join()
    return answer


def asked(before: dict[int, int]) -> dict[str, Any]:
    blocks = sorted((at, size) for at, size in live().items() if at not in before and SIZE * 4 <= size < SIZE * 5)
    answer = _holders.find(_native, blocks, BUDGET_MS)
    return answer | {"live": len(blocks), "unpacked": len(UNPACKED)}


def main(cause: str) -> None:
    torch.backends.cudnn.enabled = False
    MODEL.cuda()
    gc.collect()
    if cause in ("frame", "generator", "other_thread"):
        answer = globals()[f"in_{cause}"]()
    else:
        step = globals()[f"in_{cause}"]
        if cause == "cycle":
            gc.disable()
        before = live()
        for _ in range(STEPS):
            step()
        answer = asked(before)
    print(json.dumps(answer))


def forked(cause: str) -> bool:
    """Runs a cause in a forked process. Returns whether it succeeded."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            main(cause)
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    sys.exit(0 if all(forked(cause) for cause in sys.argv[1:]) else 1)
