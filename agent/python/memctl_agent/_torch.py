"""Facts about the user's torch: version, devices, allocator, and whether the allocator can be hooked.

Guarantees: nothing in this module initialises CUDA. After CUDA is initialised, nothing in it creates a context on a
device.
This module does not import torch. The caller passes it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Optional

# The versions with which this package was tested.
TRIED = ("2.4", "2.8", "2.11", "2.15")

# Environment variables in which launchers put a process's rank. The native module reads them.
RANK_VARIABLES = ("MEMCTL_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")

Device = tuple[int, Optional[str], Optional[str], Optional[int]]


@dataclass(frozen=True)
class Hookable:
    """The level at which the allocator can be recorded: `full`, or a lower level and the reason."""

    level: str
    why: str = ""


def release(torch: Any) -> str:
    """The release of a version: `2.11` for `2.11.0+cu130`."""
    return ".".join(str(torch.__version__).split("+", 1)[0].split(".")[:2])


def is_tried(torch: Any) -> bool:
    """Whether this version was tested."""
    return release(torch) in TRIED


def framework(torch: Any) -> str:
    """The framework's name for the session."""
    return f"torch {torch.__version__}"


def has_cuda(torch: Any) -> bool:
    """Whether torch was built for CUDA. ROCm builds also use the name cuda, but their headers differ."""
    return torch.version.cuda is not None and hasattr(torch._C, "_cuda_init")


def allocator_conf(torch: Any) -> str:
    """The allocator's settings. If torch reports settings, these are the present ones. Otherwise they come from the
    environment."""
    getter = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if getter is not None:
        try:
            settings = getter()
        except RuntimeError:
            settings = ""
        if isinstance(settings, str) and settings:
            return settings
    # If both variables are set, the older name takes precedence in every version that reads both, even if its value is
    # empty.
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF", os.environ.get("PYTORCH_ALLOC_CONF", ""))


def devices(torch: Any) -> list[Device]:
    """Ordinal, UUID (in nvidia-smi's form), name and bytes of every visible device."""
    found: list[Device] = []
    for ordinal in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(ordinal)
        uuid = getattr(properties, "uuid", None)
        text = None if uuid is None else str(uuid)
        if text and not text.startswith(("GPU-", "MIG-")):
            text = f"GPU-{text}"
        found.append((ordinal, text, properties.name, int(properties.total_memory)))
    return found


def group(torch: Any) -> dict[str, int]:
    """Rank and world size of the process group; empty if the environment has a rank or there is no group.

    Workers of `torch.multiprocessing.spawn` need this, because they pass their rank only to `init_process_group`.
    """
    if any(name in os.environ for name in RANK_VARIABLES):
        return {}
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return {}
    return {"rank": int(distributed.get_rank()), "world_size": int(distributed.get_world_size())}


def hookable(torch: Any) -> Hookable:
    """The level that the current allocator allows. CUDA must be initialised, or its initialisation must be in
    progress."""
    try:
        backend = str(torch._C._cuda_getAllocatorBackend())
    except (AttributeError, RuntimeError) as error:
        return Hookable("off", f"torch {torch.__version__} does not report its CUDA allocator ({error})")
    if backend == "cudaMallocAsync":
        return Hookable(
            "blocks",
            "the cudaMallocAsync backend has no allocator events, so only counters are recorded; "
            "for events remove `backend:cudaMallocAsync` from PYTORCH_CUDA_ALLOC_CONF",
        )
    if backend != "native":
        return Hookable(
            "off",
            f"the allocator was replaced ({backend}, torch.cuda.memory.change_current_allocator), which has no "
            "events and no counters; use the replacement in a torch.cuda.MemPool instead",
        )
    # torch only checks whether the variable exists. Any value disables the cache, even 0.
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        return Hookable(
            "off",
            "PYTORCH_NO_CUDA_MEMORY_CACHING is set, so memory does not go through the caching allocator; unset it",
        )
    return Hookable("full")
