"""Expandable segments are recommended with a warning if the process uses features that they break."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

from conftest import Memctl

SCRIPT = """
import sys, torch
if len(sys.argv) > 1:
    import {module}
kept = []
for step in range(1, 12):
    moving = [torch.empty((step * 3 + k) << 20, dtype=torch.uint8, device="cuda") for k in range(8)]
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
"""


@pytest.mark.parametrize("module", ["nixl", "torch.distributed._symmetric_memory"])
def test_what_it_breaks_is_named(memctl: Memctl, script: Any, tmp_path: pathlib.Path, module: str) -> None:
    symmetric = "symmetric" in module
    # (A pool of symmetric memory requires a device that can map it.)
    used = "\n    torch.distributed._symmetric_memory._symm_mem_pools[0] = None" if symmetric else ""
    path = script(SCRIPT.replace("{module}", module + used))
    pathlib.Path(path).with_name("nixl.py").write_text("")
    for job, arguments in (("plain", []), ("shares", ["yes"])):
        assert memctl.record(job, sys.executable, str(path), *arguments).code == 0
        answer = memctl.answer("what-if", "--job", job, "--set", "expandable_segments:True")
        [setting] = answer["ranks"][0]["settings"][1:]
        words = " ".join(setting["cautions"])
        name = "symmetric memory" if symmetric else "NIXL or UCX"
        assert (f"WARNING: this process uses {name}, which" in words) == (job == "shares"), setting
