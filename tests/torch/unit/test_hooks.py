"""The hooks change nothing for the program: results, exceptions, names, pickles, TorchScript, torch.compile."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, dataloader

from memctl_agent._hooks import FAULTS_MAX

from conftest import Watched
from test_loops import loader, model, train_step

PLACES = [
    (torch.autograd, "backward"),
    (torch.nn.Module, "train"),
    (torch.autograd.profiler.record_function, "__enter__"),
    (torch.autograd.profiler.record_function, "__exit__"),
    (DataLoader, "__iter__"),
    (dataloader._BaseDataLoaderIter, "__next__"),
    (torch.cuda, "empty_cache"),
    (torch.cuda.memory, "empty_cache"),
    (torch.cuda.memory, "_set_allocator_settings"),
]
ORIGINALS = [vars(owner)[name] for owner, name in PLACES]


def test_originals_come_back() -> None:
    watched = Watched()
    assert all(vars(owner)[name] is not original for (owner, name), original in zip(PLACES, ORIGINALS, strict=True))
    watched.hooks.remove()
    assert all(vars(owner)[name] is original for (owner, name), original in zip(PLACES, ORIGINALS, strict=True))


def test_a_wrapper_on_top_stays_and_ours_only_pass_on() -> None:
    watched = Watched()
    ours = torch.autograd.backward

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        watched.hooks.remove()
        assert torch.autograd.backward is theirs
        before = list(watched.words)
        x = torch.ones(1, requires_grad=True)
        (x * 2).sum().backward()
        assert x.grad is not None and watched.words == before
    finally:
        torch.autograd.backward = ORIGINALS[0]


def test_names_and_signatures_stay(watched: Watched) -> None:
    for (owner, name), original in zip(PLACES, ORIGINALS, strict=True):
        wrapper = vars(owner)[name]
        assert (wrapper.__name__, wrapper.__qualname__, wrapper.__module__, wrapper.__doc__) == (
            original.__name__,
            original.__qualname__,
            original.__module__,
            original.__doc__,
        )
        assert inspect.signature(wrapper) == inspect.signature(original)


def test_pickles_and_copies(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    train_step(net, optimizer, torch.zeros(1, 4))
    for thing in (net, optimizer, loader(1), torch.autograd.backward, torch.cuda.empty_cache):
        data = pickle.dumps(thing)
        assert b"memctl" not in data
        pickle.loads(data)
    copy.deepcopy(net)
    assert not net._forward_pre_hooks and not net._forward_hooks


def test_exceptions_pass_unchanged(watched: Watched) -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
        (x * 2).backward()
    assert watched.words[-1] == "/phase backward"

    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        list(DataLoader(Broken()))
    with pytest.raises(ValueError, match="training mode is expected to be boolean"):
        model().train("yes")  # type: ignore[arg-type]
    # The depth counter is restored: calls are marked again.
    model().train()
    assert watched.hub.training_depth == 0


def test_an_optimizer_that_raises_is_forgotten(watched: Watched) -> None:
    class Failing(torch.optim.SGD):
        fails = True

        def step(self, closure=None):
            if self.fails:
                raise RuntimeError("no step")
            return super().step(closure)

    net = model()
    failing = Failing(net.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="no step"):
        failing.step()
    assert watched.words[-1] == "/phase optimizer"
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(8):
        train_step(net, optimizer, torch.zeros(1, 4))
    failing.fails = False
    failing.step()
    # The leading optimizer was replaced, because the other trains the same parameters.
    assert [word for word in watched.only("step") if word.startswith("/")] == [f"/step {n}" for n in range(8)]


def test_our_own_faults_do_not_surface_and_end_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()

    def fault(*_: object) -> bool:
        raise ZeroDivisionError("ours")

    for name in ("backward_begins", "optimizer_begins", "optimizer_ends", "module_mode", "loader_begins", "batch"):
        monkeypatch.setattr(type(watched.loop), name, fault)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        for _ in range(FAULTS_MAX):
            net.train()
            for (x,) in loader(1):
                train_step(net, optimizer, x)
        assert watched.hub.faults == FAULTS_MAX
        assert watched.hub.last_fault == "ZeroDivisionError: ours"
        assert watched.hub.loop is None
    finally:
        watched.hooks.remove()


def test_training_gives_the_same_numbers() -> None:
    def losses() -> list[float]:
        torch.manual_seed(3)
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        data = DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4, shuffle=True)
        found = []
        for _ in range(3):
            net.train()
            for (x,) in data:
                loss = net(x).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
            net.eval()
        return found

    plain = losses()
    watched = Watched()
    try:
        assert losses() == plain
        assert "/epoch 1" in watched.words
    finally:
        watched.hooks.remove()


def _scripted(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("scripted"):
        return x + 1


def test_torchscript_compiles_ranges(watched: Watched) -> None:
    assert torch.jit.script(_scripted)(torch.zeros(1)).item() == 1.0


def test_compiled_functions_run_through(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="eager", fullgraph=True)
    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("inside"):
            return net(x).sum()

    compiled_step = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        forward(torch.ones(1, 4)).backward()
        compiled_step()
    assert watched.words.count("phase backward") == 2
