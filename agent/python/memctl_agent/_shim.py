"""Provides the shim for the user's torch: from the cache, from the package, or compiled.

torch's allocator interface is in C++ and changes with every minor version. So the shim is compiled against the headers
of the running torch. A shim from the package is used only for exactly the torch that it was built for. The file
contains the version and commit of this torch, and they are compared again when the shim is loaded. Shims in the package
are compressed and are unpacked into the cache.
Guarantees: only one rank of a machine compiles. The other ranks wait for it, within a time limit. A file in the cache
is complete or absent. The output of a failed compilation is kept.
Refuses: a file that another user could have written.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from memctl_agent import _torch

# A compilation takes 15 to 60 s. The time limit of waiting ranks is a little longer than that of the compilation.
COMPILE_S_MAX = 170.0
WAIT_S_MAX = 180.0
# How often a waiting rank checks.
POLL_S = 0.1
COMPILERS = ("g++", "c++", "clang++")
# The text in a shim's file that names the build of torch that it was made for (`shim.cpp`).
BUILD_MARK = re.compile(rb"memctl-hook-for: ([^\0]{1,200})\0")
# From this version on, torch's headers require C++20.
CXX20_SINCE = (2, 12)
# Replacements for headers that the CUDA 12 wheels of torch lack.
# `CUDA_RUNTIME` replaces the runtime's C++ header, which needs the compiler's package. torch's headers use only its C
# part.
# `HOST_DEFINES` replaces a header of the compiler's package that the runtime's headers include. Its macros are empty on
# the host, or they set an alignment. The replacement is used only if the real header is not found.
CUDA_RUNTIME = """\
#pragma once
#include <cuda_runtime_api.h>
"""
# Since glibc 2.32, inlined code of libstdc++ reads from the C library whether the process has only one thread. A shim
# with this code could not be loaded on older systems. A training always has several threads.
SINGLE_THREADED = """\
#pragma once
static constexpr char memctl_is_single_threaded = 0;
#define __libc_single_threaded memctl_is_single_threaded
"""
HOST_DEFINES = """\
#pragma once
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __forceinline__ __inline__ __attribute__((always_inline))
#define CUDARTAPI
#define CUDARTAPI_CDECL
"""


class ShimError(RuntimeError):
    """There is no shim for this torch. The message gives the reason and the remedy."""


@dataclass(frozen=True)
class Shim:
    """A shim that can be loaded, and its origin: `cache`, `compiled` or `package`."""

    path: Path
    origin: str


def cache_folder() -> Path:
    """The folder of the shims: `$MEMCTL_CACHE/shim`, by default `~/.cache/memctl/shim`."""
    named = os.environ.get("MEMCTL_CACHE")
    if named:
        return Path(named).expanduser() / "shim"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "memctl" / "shim"


def cxx11_abi(torch: Any) -> int:
    """The string type of libstdc++ that torch was built with: 1 for the type of C++11, otherwise 0."""
    return int(bool(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)))


def build_of(torch: Any) -> str:
    """The name of a build of torch: `2.11.0+cu130 70d99e998b4955e0049d13a98d77ae1b14db1f45`."""
    return f"{torch.__version__} {torch.version.git_version}"


def key(torch: Any, source: str) -> str:
    """A name that identifies the shim's source, the build of torch, the machine and the C library."""
    parts = (
        source,
        build_of(torch),
        str(cxx11_abi(torch)),
        platform.machine(),
        # A cache in a shared home directory may be used with several C libraries.
        "-".join(platform.libc_ver()),
    )
    return f"torch-{_torch.release(torch)}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"


def prebuilt_name(torch: Any) -> str:
    """The name of the shim's file in the package for this version of torch."""
    return f"torch-{_torch.release(torch)}-cxx11abi{cxx11_abi(torch)}-{platform.machine()}.so.gz"


def prebuilt(torch: Any) -> Optional[Path]:
    """The package's shim for this version of torch, if there is one. It may be for another build of the version."""
    path = Path(__file__).parent / "prebuilt" / prebuilt_name(torch)
    return path if path.is_file() else None


def built_for(path: Path) -> str:
    """The build of torch that a shim was made for; empty if the file does not name it."""
    try:
        found = BUILD_MARK.search(_unpacked(path))
    except (OSError, EOFError, zlib.error):
        return ""
    return found.group(1).decode("utf-8", "replace") if found else ""


def _unpacked(path: Path) -> bytes:
    """The content of a shim's file, which may be compressed."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def pack(hook: Path, target: Path) -> None:
    """Writes a shim in the package's form. The same shim always gives the same bytes."""
    target.write_bytes(gzip.compress(hook.read_bytes(), 9, mtime=0))


def unpack(packaged: Path, target: Path) -> None:
    """Unpacks the package's shim to `target`. The file appears complete or not at all."""
    descriptor, part = tempfile.mkstemp(prefix=".unpacking-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_unpacked(packaged))
        os.chmod(part, 0o700)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def misfit(torch: Any, path: Path) -> str:
    """The reason why the package's shim does not fit this torch; empty if it fits."""
    made_for = built_for(path)
    if made_for == build_of(torch):
        return ""
    made_for = made_for or "(unknown build)"
    return f"the package's shim was built for torch {made_for}, this is torch {build_of(torch)}"


def ensure(torch: Any, source: str, announce: Callable[[str], None] = lambda text: None) -> Shim:
    """The shim for this torch. A compilation is announced, because it takes a while.

    Raises `ShimError` if there is no shim and none can be made.
    """
    try:
        folder = _private(cache_folder())
    except OSError as error:
        return _without_cache(torch, source, error)
    target = folder / f"{key(torch, source)}.so"
    if _is_safe(target):
        return Shim(target, "cache")
    packaged = prebuilt(torch)
    unfit = "" if packaged is None else misfit(torch, packaged)
    if packaged is not None and not unfit:
        unpack(packaged, target)
        return Shim(target, "package")
    try:
        with _lock(target.with_suffix(".lock")):
            # Another rank may have compiled the shim while this rank waited.
            if _is_safe(target):
                return Shim(target, "cache")
            announce(f"compiling the shim for torch {torch.__version__} (once, about 15 s)")
            compile_shim(torch, source, target)
            return Shim(target, "compiled")
    except (ShimError, OSError) as error:
        raise ShimError(f"{error} ({unfit})" if unfit else str(error)) from error


def _without_cache(torch: Any, source: str, error: OSError) -> Shim:
    """The shim if there is no cache folder: the package's, otherwise a shim that is compiled for this process only."""
    packaged = prebuilt(torch)
    try:
        folder = Path(tempfile.mkdtemp(prefix="memctl-shim-"))
        if packaged is not None and not misfit(torch, packaged):
            unpack(packaged, folder / "shim.so")
            return Shim(folder / "shim.so", "package")
        compile_shim(torch, source, folder / "shim.so")
    except (ShimError, OSError) as second:
        raise ShimError(f"{error}; without a cache folder: {second}") from second
    return Shim(folder / "shim.so", "compiled")


def _private(folder: Path) -> Path:
    """Creates the folder and checks that no other user can put files into it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & ~_sticky(found):
        raise PermissionError(f"{folder} can be written by other users; set MEMCTL_CACHE to a folder of your own")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written; set MEMCTL_CACHE to a folder that can")
    return folder


def _sticky(found: os.stat_result) -> int:
    """The permission bits to ignore. On many systems files are group-writable by default, and the group is the user's
    own."""
    return stat.S_IWGRP if found.st_gid == os.getgid() else 0


def _is_safe(path: Path) -> bool:
    """Whether the file exists and was written by this user or by root."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid in (os.getuid(), 0) and not found.st_mode & stat.S_IWOTH


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds the lock, so that only one rank compiles. Raises `ShimError` if another process holds the lock for too
    long."""
    deadline = time.monotonic() + WAIT_S_MAX
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ShimError(f"another process has held {path} for {WAIT_S_MAX:.0f} s") from None
                time.sleep(POLL_S)
        yield
    finally:
        # Closing the file releases the lock.
        os.close(descriptor)


# -- compiling ---------------------------------------------------------------------------------------------


def compiler() -> Optional[str]:
    """The C++ compiler: `$CXX` if it is set and found, otherwise the first of the usual names that is found."""
    named = os.environ.get("CXX")
    for name in ((named,) if named else ()) + COMPILERS:
        found = shutil.which(name.split()[0]) if name.strip() else None
        if found:
            return found
    return None


def cuda_include(torch: Any) -> Optional[Path]:
    """The folder of `cuda_runtime_api.h`, from the wheels that came with torch, from `$CUDA_HOME`, or from the
    system."""
    site = Path(torch.__file__).resolve().parent.parent
    candidates = sorted(site.glob("nvidia/*/include"), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        if os.environ.get(variable):
            candidates.append(Path(os.environ[variable]) / "include")
    candidates.append(Path("/usr/local/cuda/include"))
    if torch.version.cuda:
        candidates.append(Path(f"/usr/local/cuda-{torch.version.cuda}/include"))
    candidates.append(Path("/usr/include"))
    for folder in candidates:
        if (folder / "cuda_runtime_api.h").is_file():
            return folder
    return None


def command(torch: Any, cxx: str, source: Path, output: Path) -> list[str]:
    """The compiler's command line. Raises `ShimError` if headers are missing."""
    root = Path(torch.__file__).resolve().parent
    cuda = cuda_include(torch)
    if not (root / "include" / "c10").is_dir():
        raise ShimError(f"{root} contains no C++ headers; install the torch wheel that has them")
    if cuda is None:
        raise ShimError(
            "cuda_runtime_api.h was not found; install the package nvidia-cuda-runtime of your CUDA version "
            "(nvidia-cuda-runtime-cu12 before CUDA 13) or set CUDA_HOME"
        )
    version = tuple(int(part) for part in _torch.release(torch).split(".") if part.isdigit())
    system = [root / "include", root / "include/torch/csrc/api/include", cuda]
    if not (cuda / "crt" / "host_config.h").is_file():
        # pip installs the headers of the runtime with torch, but not those of the compiler.
        system.insert(0, source.parent / "instead")
    return [
        cxx,
        "-std=c++20" if version >= CXX20_SINCE else "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={cxx11_abi(torch)}",
        f'-DMEMCTL_TORCH_BUILD="{build_of(torch)}"',
        "-isystem",
        str(source.parent / "portable"),
        # `-isystem` hides warnings in headers that are not part of memctl.
        *(part for folder in system for part in ("-isystem", str(folder))),
        # The headers beside the source are searched last, because they are used only if CUDA lacks them.
        "-idirafter",
        str(source.parent),
        str(source),
        "-o",
        str(output),
        f"-L{root / 'lib'}",
        "-lc10",
        "-lc10_cuda",
        "-ltorch_cpu",
    ]


def compile_shim(torch: Any, source: str, target: Path) -> None:
    """Compiles the shim to `target`. The file appears complete or not at all. Raises `ShimError`."""
    cxx = compiler()
    if cxx is None:
        raise ShimError(
            f"no C++ compiler was found for the shim of torch {torch.__version__}; install g++ or set CXX, then run "
            "`python -m memctl_agent build`"
        )
    log = target.with_suffix(".log")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent) as folder:
        text, made = Path(folder) / "shim.cpp", Path(folder) / "shim.so"
        text.write_text(source, encoding="utf-8")
        (text.parent / "crt").mkdir()
        (text.parent / "crt" / "host_defines.h").write_text(HOST_DEFINES, encoding="utf-8")
        (text.parent / "portable" / "sys").mkdir(parents=True)
        (text.parent / "portable" / "sys" / "single_threaded.h").write_text(SINGLE_THREADED, encoding="utf-8")
        (text.parent / "instead").mkdir()
        (text.parent / "instead" / "cuda_runtime.h").write_text(CUDA_RUNTIME, encoding="utf-8")
        arguments = command(torch, cxx, text, made)
        try:
            done = subprocess.run(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMPILE_S_MAX,
                env=_quiet_environment(),
                check=False,
            )
            output, failed = done.stdout, done.returncode != 0
        except subprocess.TimeoutExpired as expired:
            output, failed = expired.output or b"", True
            output += f"\nstopped after {COMPILE_S_MAX:.0f} s".encode()
        if failed or not made.is_file():
            log.write_bytes(" ".join(arguments).encode() + b"\n" + output)
            raise ShimError(f"{Path(cxx).name} could not compile the shim for torch {torch.__version__}; see {log}")
        made.chmod(0o700)
        os.replace(made, target)
    log.unlink(missing_ok=True)


def _quiet_environment() -> dict[str, str]:
    """The compiler's environment. It lacks the variables with preloaded libraries and Python paths, which are meant for
    the trainer."""
    return {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "PYTHONPATH")}
