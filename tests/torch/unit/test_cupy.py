"""`memctl_agent.cupy` with the hook class and the registry of genuine CuPy. The tests call the hooks as, by CuPy's
documentation, the pool calls them.

CuPy carries a CUDA runtime of its own, which takes nothing but a real driver: its pool does not run without a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import memctl_agent
from memctl_agent import _session

from others import Native, Pool

cupy = pytest.importorskip("cupy", reason="CuPy is not installed in this environment: pip install cupy-cuda13x")
memory_hook = pytest.importorskip("cupy.cuda.memory_hook")

from memctl_agent import cupy as memctl_cupy  # noqa: E402

ALLOC, FREE, SEGMENT, OUT_OF_MEMORY, HOLDS = 1, 2, 3, 4, 5
STREAM = 11


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[Native]:
    """A stand-in, with values that otherwise only a GPU provides."""
    made = Native()
    monkeypatch.setattr(_session, "load_native", lambda: made)
    monkeypatch.setattr(memctl_cupy, "load_native", lambda: made)
    monkeypatch.setattr(memctl_cupy, "_devices", lambda native: [(0, None, "a GPU", 80 << 30)])
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: type("Stream", (), {"ptr": STREAM}))
    monkeypatch.setattr(cupy.cuda, "Device", lambda ordinal: threading.Lock())
    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (1000, 80 << 30))
    for name in ("MEMCTL_RUN_SOCKET", "MEMCTL_DISABLED", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield made
    memctl_agent.detach()
    _session.SESSION.trouble = None
    assert memctl_cupy.MemctlHook.name not in memory_hook.get_memory_hooks()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """Replaces CuPy's default pool."""
    made = Pool(memory_hook.get_memory_hooks)
    monkeypatch.setattr(memctl_cupy, "_pool", lambda: made)
    return made


def test_every_call_of_the_pool_becomes_an_event(native: Native, pool: Pool) -> None:
    assert memctl_cupy.install(job="arrays")
    assert isinstance(memory_hook.get_memory_hooks()["memctl"], memory_hook.MemoryHook)
    assert native.started is not None and native.started["framework"] == f"cupy {cupy.__version__}"
    block = pool.malloc(1000)
    pool.free(block)
    again = pool.malloc(512)
    assert again[0] == block[0], "from what the pool has"
    assert native.events == [
        (0, SEGMENT, block[0], 1024, STREAM),
        (0, ALLOC, block[0], 1024, STREAM),
        (0, FREE, block[0], 1024, 0),
        (0, ALLOC, again[0], 512, STREAM),
    ]
    assert memctl_agent.status()["level"] == "full"


def test_a_failed_request_is_an_event_and_a_request_for_zero_bytes_is_none(native: Native, pool: Pool) -> None:
    assert memctl_cupy.install(job="full")
    pool.malloc(0)
    assert native.events == []
    pool.malloc(4000, fails=True)
    assert native.events == [(0, OUT_OF_MEMORY, 1000, 4096)]


def test_step_ends_tell_what_the_pool_holds(native: Native, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memctl_cupy, "BOUNDARY_S_MIN", 0.0)
    assert memctl_cupy.install(job="steps")
    pool.free(pool.malloc(2000))
    with memctl_agent.step(0):
        pool.malloc(512)
    assert native.events[-1] == (0, HOLDS, 0, 2048)
    used = (80 << 30) - 1000
    assert native.counted == [
        (0, {"allocated": 512, "reserved": 2048, "device_used": used, "device_total": 80 << 30}),
    ]


def test_a_hook_belongs_to_its_thread_and_nests(native: Native, pool: Pool) -> None:
    with memctl_cupy.MemctlHook(job="threads") as hook:
        with memctl_cupy.MemctlHook(job="ignored"):
            pool.malloc(512)
        pool.malloc(512)
        assert native.started is not None and native.started["job"] == "threads" and len(native.events) == 4

        def work() -> None:
            pool.malloc(512)
            with hook:
                pool.malloc(512)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(native.events) == 6, "the part without the hook is not seen"
    pool.malloc(512)
    assert len(native.events) == 6


def test_nothing_raises_into_cupy(native: Native, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*event: Any) -> bool:
        raise ValueError("broken")

    monkeypatch.setattr(native, "record", broken)
    assert memctl_cupy.install(job="broken")
    pool.free(pool.malloc(512))
    pool.malloc(512, fails=True)
    assert "broken" in str(memctl_agent.status()["trouble"])


def test_after_the_session_the_hook_is_silent(native: Native, pool: Pool) -> None:
    hook = memctl_cupy.MemctlHook(job="over")
    with hook:
        memctl_agent.detach()
        pool.malloc(512)
    assert native.events == [] and native.stops == 1
    assert memctl_cupy.install(job="next") and native.started is not None
    pool.malloc(512)
    assert len(native.events) == 2


def test_an_allocator_without_hooks_is_refused(native: Native, capfd: pytest.CaptureFixture[str]) -> None:
    former = cupy.cuda.get_allocator()
    try:
        cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(lambda size, device: 0, lambda p, d: None).malloc)
        assert memctl_cupy.install(job="async") is False
    finally:
        cupy.cuda.set_allocator(former)
    assert "calls no hook" in capfd.readouterr().err
    assert native.started is None


def test_memory_held_before_install_is_reported(native: Native, pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    pool.malloc(4000)
    assert memctl_cupy.install(job="late")
    assert "already held 4096 bytes" in capfd.readouterr().err


def test_where_pytorch_is_recorded_cupy_is_not(native: Native, pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    native.refuses_foreign = True
    assert memctl_cupy.install(job="both") is False
    assert "PyTorch's allocator is recorded here" in capfd.readouterr().err
    assert native.stops == 1 and memctl_agent.status()["state"] == "off"
    pool.malloc(512)
    assert native.events == []
