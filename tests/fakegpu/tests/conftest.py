"""Runs pieces of Python in processes of their own, since the fake GPU reads its settings once in each.

These tests run inside the environment that they test:
`$(tests/fakegpu/setup 2.11.0 --with pytest nvidia-ml-py) pytest tests/fakegpu/tests`.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
# Far longer than any of them takes on a slow machine: a process that hangs fails its test instead of the whole run.
LIMIT_S = 900

Answer = dict[str, Any]
Script = Callable[..., Answer]


def environment(**settings: str) -> dict[str, str]:
    """This process's environment without its own settings of the fake GPU and of the allocator, plus the given ones."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAKE_GPU_", "CUDA_VISIBLE", "PYTORCH_"))}
    return {**kept, "OMP_NUM_THREADS": "1", **settings}


def execute(command: list[str], **settings: str) -> str:
    done = subprocess.run(command, env=environment(**settings), capture_output=True, text=True, timeout=LIMIT_S)
    said = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{said}"
    return done.stdout


@pytest.fixture
def script() -> Script:
    """`script(code, NAME="value")` runs the code, which puts its results into the dictionary `answer`."""

    def run(code: str, **settings: str) -> Answer:
        whole = f"import json, torch\nanswer = {{}}\n{textwrap.dedent(code)}\nprint('ANSWER' + json.dumps(answer))\n"
        return json.loads(execute([sys.executable, "-c", whole], **settings).rpartition("ANSWER")[2])

    return run
