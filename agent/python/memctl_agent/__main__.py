"""`python -m memctl_agent doctor` reports what works with this Python and its torch. `build` compiles the shim in
advance.

Guarantees: `doctor` changes nothing, does not initialise CUDA and reports on stdout. Exit code 0 means that all events
of the allocator of this torch can be recorded, 1 means that something is missing, and 2 means wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Optional

from memctl_agent import _session, _shim, _torch


def _import_torch() -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        return error
    return torch


class Report:
    """Prints the lines of the report, and records whether anything is missing."""

    def __init__(self) -> None:
        self.is_well = True

    def fine(self, text: str) -> None:
        """Reports something that works."""
        print(f"ok    {text}")

    def note(self, text: str) -> None:
        """Reports information."""
        print(f"note  {text}")

    def lacks(self, text: str) -> None:
        """Reports something that is missing, and the remedy."""
        self.is_well = False
        print(f"fault {text}")


def doctor() -> int:
    """Reports what works with this Python and its torch."""
    report = Report()
    if _session.is_disabled():
        report.lacks("MEMCTL_DISABLED is set, so nothing is recorded; unset it")
    native = _session.load_native()
    if native is None:
        report.lacks("the native module is missing; reinstall memctl-agent for this Python and platform")
    else:
        report.fine(f"native module, version {native.shim_abi()} of the interface to the shim")
    torch = _import_torch()
    if isinstance(torch, ImportError):
        report.lacks(f"{sys.executable} cannot import torch ({torch})")
    elif not _torch.has_cuda(torch):
        report.lacks(f"torch {torch.__version__} was built without CUDA; install a CUDA build of torch")
    else:
        _doctor_torch(report, torch, native)
    return 0 if report.is_well else 1


def _doctor_torch(report: Report, torch: Any, native: Any) -> None:
    tried = "" if _torch.is_tried(torch) else f"; this version was not tested (tested: {', '.join(_torch.TRIED)})"
    report.fine(f"torch {torch.__version__} for CUDA {torch.version.cuda}{tried}")
    conf = _torch.allocator_conf(torch)
    report.note(f"allocator settings: {conf or 'none'}")
    # This does not initialise CUDA, because torch chooses the backend when it is loaded.
    hookable = _torch.hookable(torch)
    if hookable.level != "full":
        report.lacks(hookable.why)
    if native is not None:
        _doctor_shim(report, torch, native.shim_source())


def _doctor_shim(report: Report, torch: Any, source: str) -> None:
    cached = _shim.cache_folder() / f"{_shim.key(torch, source)}.so"
    packaged = _shim.prebuilt(torch)
    unfit = "" if packaged is None else _shim.misfit(torch, packaged)
    if unfit:
        report.note(f"{unfit}; it is not used")
        packaged = None
    cxx, cuda = _shim.compiler(), _shim.cuda_include(torch)
    if cached.is_file():
        report.fine(f"shim for this torch: {cached}")
    elif packaged is not None:
        report.fine(f"shim from the package: {packaged}")
    elif cxx is not None and cuda is not None:
        report.fine(
            f"{cxx} compiles the shim at first use, with {cuda}; `python -m memctl_agent build` compiles it now"
        )
    elif cxx is None:
        report.lacks("there is no C++ compiler for the shim; install g++ or set CXX")
    else:
        report.lacks("there is no cuda_runtime_api.h for the shim; install nvidia-cuda-runtime or set CUDA_HOME")


def build(output: Optional[str]) -> int:
    """Compiles the shim for this torch, into the cache or into a folder."""
    torch, native = _import_torch(), _session.load_native()
    if isinstance(torch, ImportError) or native is None or not _torch.has_cuda(torch):
        return doctor()
    began = time.monotonic()
    try:
        if output is not None:
            target = Path(output).resolve() / _shim.prebuilt_name(torch)
            target.parent.mkdir(parents=True, exist_ok=True)
            hook = target.with_suffix("")
            _shim.compile_shim(torch, native.shim_source(), hook)
            _shim.pack(hook, target)
            hook.unlink()
            print(target)
            return 0
        shim = _shim.ensure(torch, native.shim_source())
    except (_shim.ShimError, OSError) as error:
        print(f"memctl: {error}", file=sys.stderr)
        return 1
    took = f", {time.monotonic() - began:.0f} s" if shim.origin == "compiled" else ""
    print(f"{shim.path} ({shim.origin}{took})")
    return 0


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m memctl_agent", description="memctl's agent for PyTorch")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="report what works with this Python and its torch")
    builder = commands.add_parser("build", help="compile the shim for this torch before the first run")
    builder.add_argument("--output", metavar="FOLDER", help="write the shim to FOLDER, under the name that wheels use")
    parsed = parser.parse_args(arguments)
    return doctor() if parsed.command == "doctor" else build(parsed.output)


if __name__ == "__main__":
    sys.exit(main())
