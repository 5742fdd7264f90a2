"""Sharing of device memory between processes is detected only where it is used."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from memctl_agent._sharing import EVERY_S, Sharing

HANDLE = b"\x01" + bytes(64)


class Native:
    """Records what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def counters(self, device: int, sharing: Any) -> bool:
        self.sent.append((device, sharing))
        return True


TORCH: Any = types.SimpleNamespace(cuda=types.SimpleNamespace(current_device=lambda: 3))


def module(monkeypatch: pytest.MonkeyPatch, name: str, **named: Any) -> None:
    made = types.ModuleType(name)
    vars(made).update(named)
    monkeypatch.setitem(sys.modules, name, made)


def look() -> list[tuple[int, Any]]:
    native = Native()
    Sharing().look(TORCH, native)
    return native.sent


@pytest.fixture(autouse=True)
def nothing_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.multiprocessing.reductions", "torch.distributed._symmetric_memory", "nixl"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_nothing_is_sent_where_nothing_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look() == []
    shared = {(4, 5): None, b"/torch_12_34_0": None}
    module(monkeypatch, "torch.multiprocessing.reductions", shared_cache=shared)
    module(monkeypatch, "torch.distributed._symmetric_memory", _symm_mem_pools={}, _group_name_to_store={})
    assert look() == [], "tensors of the host are shared by DataLoader workers"


@pytest.mark.parametrize("key", [HANDLE, (HANDLE, 512)], ids=["sent", "received"])
def test_a_cuda_handle_is_cuda_ipc(monkeypatch: pytest.MonkeyPatch, key: object) -> None:
    module(monkeypatch, "torch.multiprocessing.reductions", shared_cache={(4, 5): None, key: None})
    assert look() == [(3, (True, False, False))]


def test_rdma_and_symmetric_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "nixl")
    assert look() == [(3, (False, True, False))]
    module(monkeypatch, "torch.distributed._symmetric_memory", _symm_mem_pools={0: object()})
    assert look() == [(3, (False, True, True))]


def test_what_was_seen_stays_seen_and_is_looked_at_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, native = [0.0], Native()
    sharing = Sharing(lambda: now[0])
    module(monkeypatch, "nixl")
    sharing.step_ended(TORCH, native)
    monkeypatch.delitem(sys.modules, "nixl")
    for _ in range(10):
        now[0] += EVERY_S / 5
        sharing.step_ended(TORCH, native)
    assert [seen for _, seen in native.sent] == [(False, True, False)] * 3


def test_trouble_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> int:
        raise RuntimeError("CUDA error: device lost")

    module(monkeypatch, "nixl")
    Sharing().look(types.SimpleNamespace(cuda=types.SimpleNamespace(current_device=breaks)), Native())
