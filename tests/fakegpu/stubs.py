"""Builds the fake GPU's libraries for one installed PyTorch, or the driver and NVML alone for none.

Writes OUT/lib/libfakegpu.so (the sources in src/), OUT/lib/libfakestubs.so (every other entry that torch's libraries
want) and one small library per name that they want, which has that name's symbol versions and leads to the first two.
OUT/nvml has NVML apart. What is generated refuses, save for cuBLAS and annotations. Needs gcc and binutils.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import shutil
import subprocess

# Names under which NVIDIA ships libraries. Other libraries that torch needs belong to the system.
VENDOR = re.compile(r"lib(cu|nv|nccl|magma_cuda)")

# What a generated entry returns, by the first prefix that fits. Most are the library's own "internal error", "not
# supported" or "not initialised": outputs stay unwritten, so after a success the caller would use garbage as sizes.
ANSWERS: list[tuple[str, int]] = [
    ("cublas", 0),  # matrix products: nothing is computed, and nothing is read back
    ("nvtx", 0),  # annotations
    ("cudnn", 1),  # CUDNN_STATUS_NOT_INITIALIZED
    ("cufft", 5),  # CUFFT_INTERNAL_ERROR
    ("curand", 999),  # CURAND_STATUS_INTERNAL_ERROR
    ("cusolver", 7),  # CUSOLVER_STATUS_INTERNAL_ERROR
    ("cusparseLt", 10),  # CUSPARSE_STATUS_NOT_SUPPORTED
    ("cusparse", 7),  # CUSPARSE_STATUS_INTERNAL_ERROR
    ("nccl", 3),  # ncclInternalError
    ("cupti", 15),  # CUPTI_ERROR_NOT_INITIALIZED: the profiler goes on without CUDA
    ("nvrtc", 11),  # NVRTC_ERROR_INTERNAL_ERROR
    ("cuFile", 5011),  # CU_FILE_INTERNAL_ERROR
    ("nvshmem", -1),
    ("nvml", 3),  # NVML_ERROR_NOT_SUPPORTED
    ("cu", 801),  # runtime and driver alike: not supported
    ("__cuda", 0),  # registration of kernels and variables
]
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate, from linux/falloc.h
FLAGS = ["-std=gnu17", "-O1", "-g", "-fPIC", "-pthread"]


def output(*command: str | os.PathLike[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("LD_PRELOAD", None)  # a fake GPU already active must not affect the tools
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def hollow(torch: pathlib.Path) -> None:
    """Frees the disk space of the kernels in torch's libraries, up to half of the total; nothing here reads them.

    The files keep their sizes and all other contents. A file system that cannot punch holes leaves them unchanged.
    """
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    for library in torch.rglob("*.so"):
        sections = output("readelf", "-SW", library)
        found = re.search(r" \.nv_fatbin +PROGBITS +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) ", sections)
        if found:
            with open(library, "r+b") as file:
                fallocate(file.fileno(), KEEP_SIZE | PUNCH_HOLE, int(found.group(1), 16), int(found.group(2), 16))


class Wanted:
    """What a PyTorch's libraries need from NVIDIA: library names with symbol versions, and symbols."""

    def __init__(self, libraries: list[pathlib.Path]) -> None:
        self.symbols: set[str] = set()
        self.names: dict[str, set[str]] = {}
        for library in libraries:
            for needed in re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "-dW", library)):
                if VENDOR.match(needed):
                    self.names.setdefault(needed, set())
            current = ""
            for file, version in re.findall(r"File: (\S+)|Name: (\S+) +Flags", output("readelf", "-VW", library)):
                current = file or current
                if version and current in self.names:
                    self.names[current].add(version)
            symbols = re.findall(r" U ([^@\s]+)", output("nm", "-D", "--undefined-only", library))
            self.symbols.update(s for s in symbols if any(s.startswith(prefix) for prefix, _ in ANSWERS))
            if library.name.startswith("libc10_cuda"):
                # NVML is looked up by name at run time, and a name that is missing is an error
                names = re.findall(rb"\0(nvml[A-Z]\w+)(?=\0)", library.read_bytes())
                self.symbols.update(name.decode() for name in names)


def compile_library(path: pathlib.Path, *arguments: str | os.PathLike[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    where = ["-shared", f"-Wl,-soname,{path.name}", "-Wl,-rpath,$ORIGIN:$ORIGIN/../lib", "-o", path]
    done = subprocess.run(["gcc", *FLAGS, *where, *arguments], capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise SystemExit(f"fakegpu: building {path.name} failed:\n{done.stderr}")


def leading(path: pathlib.Path, versions: set[str], targets: list[pathlib.Path], work: pathlib.Path) -> None:
    """A library with a name and its symbol versions but no entry of its own: lookups continue in `targets`."""
    source, script = work / "leading.c", work / "versions.map"
    marks = [f"fakegpu_version_{number}" for number in range(len(versions))]
    source.write_text("".join(f"const int {mark} = 1;\n" for mark in marks) or "const int fakegpu_leading = 1;\n")
    nodes = zip(sorted(versions), marks)
    script.write_text("".join(f"{version} {{ global: {mark}; }};\n" for version, mark in nodes))
    extra = [f"-Wl,--version-script={script}"] if versions else []
    compile_library(path, source, *extra, "-Wl,--no-as-needed", *targets)


def declared(include: pathlib.Path) -> set[str]:
    """Every entry of CUDA's runtime and driver, from their headers."""
    runtime = (include / "cuda_runtime_api.h").read_text(errors="replace")
    driver = "".join(path.read_text(errors="replace") for path in include.glob("cuda*.h"))
    names = set(re.findall(r"CUDARTAPI(?:_CDECL)? (cuda\w+)\(", runtime))
    names.update({"cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"})  # from a header in another wheel
    names.update(re.findall(r"CUresult CUDAAPI\s+(cu[A-Z]\w+)\(", driver))
    # the header renames functions with a second version: #define cuMemAlloc cuMemAlloc_v2
    names.update(re.findall(r"#define\s+cu[A-Z]\w+\s+(?:__CUDA_API_PT\w+\()?(cu[A-Z]\w+)", driver))
    return names


def build(src: pathlib.Path, out: pathlib.Path, torch: pathlib.Path | None, include: pathlib.Path | None) -> None:
    """Builds everything into `out`, a folder that does not exist."""
    out.mkdir(parents=True)
    lib, work = out / "lib", out / "work"
    work.mkdir()
    sources = sorted(src.glob("*.c"))
    if include is None:
        sources = [path for path in sources if not path.name.startswith(("runtime", "blas"))]
    extra = [f"-isystem{include}"] if include else []
    core, rest = lib / "libfakegpu.so", lib / "libfakestubs.so"
    compile_library(core, "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", *extra, *sources, "-ldl")
    wanted = Wanted(sorted(torch.rglob("*.so*")) if torch else [])
    written = set(re.findall(r" T (\S+)", output("nm", "-D", "--defined-only", core)))
    names = (wanted.symbols | (declared(include) if include else set())) - written
    lines = ["/* Generated: entries that refuse. */"]
    for name in sorted(names):
        answer = next(value for prefix, value in ANSWERS if name.startswith(prefix))
        lines.append(f"long {name}(void) {{ return {answer}; }}")
    (work / "rest.c").write_text("\n".join([*lines, ""]))
    compile_library(rest, work / "rest.c")
    for name in ["libcuda.so.1", "libcuda.so"]:
        leading(lib / name, wanted.names.pop(name, set()), [core, rest], work)
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"]:
        leading(out / "nvml" / name, set(), [core, rest], work)
    for name, versions in sorted(wanted.names.items()):
        leading(lib / name, versions, [core, rest], work)
    shutil.rmtree(work)
