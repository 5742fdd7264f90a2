"""The memory of NCCL's communicators: which of them are queried, and when.

The library is a genuine one, built here, with the same call as NCCL's own. Stand-ins replace PyTorch's process groups;
the live tests query the genuine ones.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import types
from typing import Any, Optional

import pytest

from memctl_agent import _nccl
from memctl_agent._nccl import Nccl

MIB = 1 << 20
# A communicator is its bytes and whether they are suspended; NULL and unknown statistics are refused.
NCCL = """
#include <stdint.h>
struct comm { uint64_t persist, suspend, suspended; };
int ncclCommMemStats(struct comm *of, int statistic, uint64_t *value) {
    if (!of || statistic < 0 || statistic > 3) return 4;
    const uint64_t values[] = {of->suspend, of->suspended, of->persist, of->persist + of->suspend};
    *value = values[statistic];
    return 0;
}
struct comm *make(uint64_t persist, uint64_t suspend, uint64_t suspended) {
    static struct comm made[8];
    static int count;
    made[count] = (struct comm){persist, suspend, suspended};
    return &made[count++];
}
"""


class Group:
    """A process group of one rank."""

    def __init__(
        self, pointer: int = 0, used: int = 1, stats: Any = None, has_cuda: bool = True, is_nccl: bool = True
    ) -> None:
        self.backend: Any = ProcessGroupNCCL2() if is_nccl else types.SimpleNamespace()
        self.backend.pointer, self.backend.used = pointer, used
        if stats is not None:
            self.backend.memory_stats = stats
        self.has_cuda = has_cuda

    def _get_backend(self, device: str) -> Any:
        if not self.has_cuda:
            raise RuntimeError(f"no backend for {device}")
        return self.backend


class ProcessGroupNCCL2:
    """Replaces torch's backend; its name contains that of torch's."""

    pointer, used = 0, 1
    memory_stats: Any

    def _get_sequence_number_for_group(self) -> int:
        return self.used

    def _comm_ptr(self) -> int:
        assert self.used, "a communicator that no collective has used may be waited for"
        return self.pointer


class NativeCounters:
    """Replaces the native module."""

    def __init__(self) -> None:
        self.nccl: list[tuple[int, Optional[int]]] = []

    def counters(self, device: int, nccl: Optional[int] = None) -> bool:
        """The bytes of a device."""
        self.nccl.append((device, nccl))
        return True


def torch_of(monkeypatch: pytest.MonkeyPatch, *groups: Any, capturing: bool = False) -> Any:
    """The part of torch that is used."""
    module = types.SimpleNamespace(_world=types.SimpleNamespace(pg_map=dict.fromkeys(groups)))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)
    return types.SimpleNamespace(
        device=str,
        cuda=types.SimpleNamespace(current_device=lambda: 2, is_current_stream_capturing=lambda: capturing),
        distributed=types.SimpleNamespace(is_initialized=lambda: bool(groups)),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library, loaded as torch loads NCCL."""
    import ctypes

    folder = tmp_path_factory.mktemp("nccl")
    source, built = folder / "nccl.c", folder / "libmemctltestnccl.so.2"
    source.write_text(NCCL)
    name = f"-Wl,-soname,{built.name}"
    subprocess.run(["gcc", "-shared", "-fPIC", name, "-o", str(built), str(source)], check=True)
    loaded = ctypes.CDLL(str(built))
    loaded.make.restype = ctypes.c_void_p
    loaded.make.argtypes = [ctypes.c_uint64] * 3
    return loaded


def ask(torch: Any, nccl: Optional[Nccl] = None) -> list[tuple[int, Optional[int]]]:
    """The counters that are reported at the end of one step."""
    native = NativeCounters()
    (nccl or Nccl(lambda: 0.0)).step_ended(torch, native)
    return native.nccl


def test_the_library_that_is_loaded_is_asked(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(_nccl, "LIBRARY", "libmemctltestnccl.so.2")
    first, second = library.make(5 * MIB, 3 * MIB, 0), library.make(7 * MIB, 90 * MIB, 1)
    groups = [Group(first), Group(first), Group(second), Group(library.make(1, 1, 0), used=0)]
    groups += [Group(has_cuda=False), Group(is_nccl=False)]
    assert ask(torch_of(monkeypatch, *groups)) == [(2, 15 * MIB)], "each once, and of a suspended one what stays"
    assert ask(torch_of(monkeypatch, Group(0))) == [], "no communicator of this device"
    assert ask(torch_of(monkeypatch)) == [], "no process group"
    assert ask(torch_of(monkeypatch, Group(first), capturing=True)) == []


def test_a_library_without_the_function_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    import ctypes

    built = tmp_path / "libmemctltestold.so.2"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{built.name}", "-o", str(built)]
    subprocess.run(command, input=b"int ncclGetVersion(int *to) { *to = 22809; return 0; }", check=True)
    torch = torch_of(monkeypatch, Group(4096))
    monkeypatch.setattr(_nccl, "LIBRARY", built.name)
    assert ask(torch) == [], "it is there and not loaded"
    old = ctypes.CDLL(str(built))
    assert old is not None and ask(torch) == [], "it is loaded and does not have it"


def test_torch_is_asked_where_it_asks_nccl_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"suspend": 6, "suspended": 0, "persist": 2, "total": 8}

    def refuses() -> dict[str, int]:
        raise RuntimeError("requires NCCL 2.29.7 or later")

    assert ask(torch_of(monkeypatch, Group(stats=lambda: stats))) == [(2, 8)]
    assert ask(torch_of(monkeypatch, Group(stats=lambda: {**stats, "suspended": 1}))) == [(2, 2)]
    monkeypatch.setattr(_nccl, "LIBRARY", "libmemctltestnowhere.so.2")
    assert ask(torch_of(monkeypatch, Group(4096, stats=refuses))) == []


def test_no_backend_is_asked_too_often_or_after_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    nccl = Nccl(lambda: now[0])
    torch = torch_of(monkeypatch, Group(stats=lambda: {"total": 1}))
    asked = 0
    for _ in range(100):
        asked += len(ask(torch, nccl))
        now[0] += 0.5
    assert asked == 10

    calls = []

    def breaks() -> dict[str, int]:
        calls.append(1)
        raise ValueError("whatever it is, training does not see it")

    torch = torch_of(monkeypatch, Group(stats=breaks))
    for _ in range(10):
        now[0] += 60.0
        assert ask(torch, nccl) == []
    assert len(calls) == 3
