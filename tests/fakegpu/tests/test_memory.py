"""Bytes are accounted by device and across processes, for every way of allocation."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from conftest import Script, environment

MIB = 1 << 20
HOLDER = """
import os, sys, torch
torch.cuda.set_device(int(sys.argv[1]))
held = torch.empty(int(sys.argv[2]) << 20, dtype=torch.uint8, device="cuda")
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("settings", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_backends_of_the_allocator(script: Script, settings: str) -> None:
    found = script(
        """
        before = torch.cuda.mem_get_info()[0]
        x = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
        answer["taken"] = before - torch.cuda.mem_get_info()[0]
        answer["reserved"] = torch.cuda.memory_reserved()
        del x
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        answer["left"] = before - torch.cuda.mem_get_info()[0]
        """,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )
    assert 120 * MIB <= found["taken"] == found["reserved"] <= 128 * MIB
    assert found["left"] == 0


def test_expandable_segments_map_and_unmap(script: Script) -> None:
    found = script(
        """
        torch.cuda.memory._record_memory_history(max_entries=1000)
        x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda").zero_()
        answer["expandable"] = any(s.get("is_expandable") for s in torch.cuda.memory._snapshot()["segments"])
        del x
        torch.cuda.empty_cache()
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        answer["actions"] = [e["action"] for e in events]
        """,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert found["expandable"]
    assert "segment_map" in found["actions"] and "segment_unmap" in found["actions"]


def test_expandable_segments_run_out_of_memory(script: Script) -> None:
    found = script(
        """
        held = []
        try:
            while True:
                held.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            answer["held"] = len(held)
        """,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
        FAKE_GPU_MIB="1024",
    )
    assert found["held"] == 10


def test_devices_are_accounted_apart(script: Script) -> None:
    found = script(
        """
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:1")
        answer["used"] = [total - free for free, total in map(torch.cuda.mem_get_info, range(3))]
        answer["current"] = torch.cuda.current_device()
        """,
        FAKE_GPU_COUNT="3",
        FAKE_GPU_CONTEXT_MIB="10",
    )
    # a query about a device creates a context on it, as with the real driver
    assert found == {"used": [10 * MIB, 74 * MIB, 10 * MIB], "current": 0}


def test_visible_devices_are_renumbered(script: Script) -> None:
    found = script(
        """
        import ctypes
        text = ctypes.create_string_buffer(32)
        answer["count"] = torch.cuda.device_count()
        answer["buses"] = []
        for device in range(torch.cuda.device_count()):
            ctypes.CDLL(None).cudaDeviceGetPCIBusId(text, 32, device)
            answer["buses"].append(text.value.decode())
        """,
        FAKE_GPU_COUNT="4",
        CUDA_VISIBLE_DEVICES="3,1",
    )
    assert found == {"count": 2, "buses": ["00000000:04:00.0", "00000000:02:00.0"]}


def test_pinned_memory_at_volume(script: Script) -> None:
    found = script(
        """
        held = [torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(64)]
        answer["pinned"] = all(x.is_pinned() for x in held)
        answer["pageable"] = torch.empty(3).is_pinned()
        answer["device_bytes"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
        """
    )
    assert found == {"pinned": True, "pageable": False, "device_bytes": 0}


def test_a_fork_of_a_process_with_a_context_is_refused(script: Script) -> None:
    found = script(
        """
        import ctypes, os
        x = torch.empty(1 << 20, device="cuda")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            pointer = ctypes.c_void_p()
            os.write(writing, b"%d" % ctypes.CDLL(None).cudaMalloc(ctypes.byref(pointer), 4096))
            os._exit(0)
        os.waitpid(child, 0)
        answer["error"] = int(os.read(reading, 16))
        answer["used"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
        """
    )
    assert found == {"error": 3, "used": 20 * MIB}  # the segment of a tensor of 4 MiB


def test_nvml_and_another_process_see_the_same_bytes(script: Script, tmp_path: pathlib.Path) -> None:
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    assert pynvml
    state = {"FAKE_GPU_STATE": str(tmp_path / "gpus"), "FAKE_GPU_COUNT": "2", "FAKE_GPU_CONTEXT_MIB": "5"}
    look = """
    import pynvml
    pynvml.nvmlInit()
    answer["count"] = pynvml.nvmlDeviceGetCount()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    answer["nvml"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    answer["nvml_v2"] = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used
    answer["processes"] = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    answer["same"] = pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    answer["bus"] = pynvml.nvmlDeviceGetPciInfo(handle).bus
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "1", "200"],
        env=environment(**state),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout
        pid = int(holder.stdout.readline())
        seen = script(look, **state)
        asked = script("free, total = torch.cuda.mem_get_info(1); answer['used'] = total - free", **state)
    finally:
        holder.kill()  # the process cannot clean up, but its memory must be freed
        holder.wait()
    bytes_held = 205 * MIB
    assert seen == {
        "count": 2,
        "nvml": bytes_held,
        "nvml_v2": bytes_held,
        "processes": {str(pid): bytes_held},
        "same": 1,
        "bus": 2,
    }
    assert asked["used"] == bytes_held + 5 * MIB  # and the querying process's own context
    assert script(look, **state)["nvml"] == 0


def test_another_process_can_take_the_last_bytes(script: Script, tmp_path: pathlib.Path) -> None:
    state = {"FAKE_GPU_STATE": str(tmp_path / "gpus"), "FAKE_GPU_MIB": "1024"}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "0", "800"],
        env=environment(**state),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout
        pid = int(holder.stdout.readline())
        found = script(
            """
            try:
                torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError as error:
                answer["text"] = str(error)
            """,
            **state,
        )
    finally:
        holder.kill()
        holder.wait()
    assert f"Process {pid} has 800.00 MiB memory in use" in found["text"]


def test_driver_and_nvml_name_the_same_device(script: Script) -> None:
    found = script(
        """
        import ctypes
        driver, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
        uuid, text, bus = map(ctypes.create_string_buffer, (16, 96, 32))
        handle = ctypes.c_void_p()
        answer["errors"] = [
            driver.cuInit(0), driver.cuDeviceGetUuid_v2(uuid, 0), driver.cuDeviceGetPCIBusId(bus, 32, 0),
            nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)),
            nvml.nvmlDeviceGetUUID(handle, text, 96),
        ]
        answer["driver"] = uuid.raw.hex()
        answer["nvml"] = text.value.decode().removeprefix("GPU-").replace("-", "")
        answer["name"] = torch.cuda.get_device_name()
        """,
        FAKE_GPU_COUNT="4",
        CUDA_VISIBLE_DEVICES="2",
    )
    assert found["errors"] == [0] * 6
    assert found["driver"] == found["nvml"]
    assert found["driver"].endswith("02")


def test_nvml_can_be_broken(script: Script) -> None:
    found = script(
        "import ctypes; answer['error'] = ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2()", FAKE_GPU_NVML="broken"
    )
    assert found == {"error": 18}
