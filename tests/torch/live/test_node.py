"""`memctl node check`: whose memory a machine's devices hold, before or after a job."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import TESTS, Memctl, finish

HOLDER = """
import sys, torch
held = torch.zeros(200 << 20, dtype=torch.uint8, device="cuda")
print("holds", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(memctl: Memctl, script: pathlib.Path, **environment: str) -> Iterator[int]:
    """A process that holds 200 MiB of the device."""
    argv = [sys.executable, str(script)]
    everything = {**memctl.environment, **environment}
    with subprocess.Popen(argv, env=everything, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "holds\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


def node_check(memctl: Memctl, *flags: str) -> tuple[int, dict[str, Any]]:
    run = memctl("node", "check", "-o", "json", *flags)
    return run.code, json.loads(run.out)["devices"][0]


@pytest.mark.parametrize("job", ["", "12"])
def test_whose_memory_it_is(memctl: Memctl, script: Any, job: str) -> None:
    code, device = node_check(memctl, "--refuse")
    assert (code, device["processes"], device["no_job_bytes"]) == (0, [], 0), device
    with holding(memctl, script(HOLDER), SLURM_JOB_ID=job) as pid:
        code, device = node_check(memctl, "--refuse")
        [process] = device["processes"]
        assert (process["pid"], process["uid"], process["job"]) == (pid, os.getuid(), job or None), process
        assert process["used_bytes"] >= 200 << 20 and process["used_bytes"] == device["used_bytes"], device
        left = 0 if job else process["used_bytes"]
        assert (code, process["owner"], device["no_job_bytes"]) == (int(not job), "job" if job else "no_job", left)
        # Its job has ended; the program may do that; it is less than what counts.
        code, device = node_check(memctl, "--refuse", "--ended", "12")
        assert (code, device["no_job_bytes"]) == (1, process["used_bytes"]), device
        program = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        code, device = node_check(memctl, "--refuse", "--ended", "12", "--allow", program)
        assert (code, device["processes"][0]["owner"]) == (0, "allowed"), device
        assert node_check(memctl, "--refuse", "--ended", "12", "--above", "1GiB")[0] == 0
        page = memctl("node", "check", "--ended", "12").out
        assert "is held by no running job" in page and str(pid) in page, page


def test_the_prolog_reports_or_refuses(memctl: Memctl, script: Any) -> None:
    prolog = str(TESTS.parent / "deploy" / "slurm" / "prolog.sh")
    settings = {**memctl.environment, "SLURM_JOB_ID": "13", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
    settings["PATH"] = f"{pathlib.Path(memctl.command).parent}:{settings['PATH']}"
    settings["MEMCTL_SLURM_SETTINGS"] = str(memctl.folder / "settings")
    (memctl.folder / "settings").write_text("MEMCTL_NODE_CHECK=refuse\n")
    assert finish([prolog], settings).code == 0
    with holding(memctl, script(HOLDER)) as pid:
        refused = finish([prolog], settings)
        assert refused.code == 1 and str(pid) in refused.err, refused
        (memctl.folder / "settings").write_text("MEMCTL_NODE_CHECK=report\n")
        reported = finish([prolog], settings)
        assert reported.code == 0 and str(pid) in reported.err, reported
