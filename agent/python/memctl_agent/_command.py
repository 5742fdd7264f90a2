"""Asks memctl's command line about a job, in a process of its own and for a limited time.

Guarantees: a question ends within its time limit. Nothing is changed in this process, and nothing but a `Refusal` is
raised. The answer comes from the daemon or
local service to which this process's recording goes.
Refuses: to ask without a job.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import Any, Optional

from memctl_agent._session import ATTACHED, SESSION

# Maximum output of a command, in bytes.
OUTPUT_BYTES_MAX = 64 << 20


class Refusal(Exception):
    """Why there is no answer, in one sentence with the remedy. `is_final` is whether the command itself refused."""

    def __init__(self, text: str, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


def program() -> str:
    """The path of the program `memctl`: of this installation, or else of the search path."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # (`pip install --target` puts programs beside the packages.)
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable), os.path.join(package, "bin")):
        path = os.path.join(folder, "memctl") if folder else ""
        if path and os.access(path, os.X_OK):
            return path
    found = shutil.which("memctl")
    if found is None:
        raise Refusal("the program `memctl` was not found; it is part of the package memctl-agent")
    return found


def own_job() -> str:
    """The name of the job under which this process is recorded."""
    status = SESSION.status()
    if status.get("state") != ATTACHED:
        waits = status.get("state") == "armed"
        why = "recording begins when CUDA is initialised" if waits else "call memctl_agent.attach() first"
        raise Refusal(f"this process is not recorded: {why}")
    return str(status["job"])


def connection_flags() -> list[str]:
    """The flags that name the daemon or the data folder of this process's recording. No flag: the local service."""
    if "MEMCTL_RUN_SOCKET" in os.environ:
        for flag, name in (("--daemon", "MEMCTL_RUN_DAEMON"), ("--data-dir", "MEMCTL_RUN_DATA_DIR")):
            if os.environ.get(name):
                return [flag, os.environ[name]]
        return []
    daemon = SESSION.daemon()
    return [] if daemon is None else ["--daemon", daemon]


def ask(verb: str, job: str, *flags: str, limit_s: float) -> str:
    """The output of `memctl VERB` about a job. Raises `Refusal` if it fails or takes more than `limit_s` seconds."""
    return run(verb, f"--job={job}", *flags, limit_s=limit_s)


def run(verb: str, *flags: str, limit_s: float) -> str:
    """The output of `memctl VERB`. Raises `Refusal` if it fails or takes more than `limit_s` seconds."""
    command = [program(), verb, *connection_flags(), *flags]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise Refusal(f"no answer within {limit_s:g} s") from None
    except OSError as error:
        raise Refusal(f"{command[0]} does not start: {error}") from None
    if ran.returncode:
        lines = ran.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {ran.returncode}"]
        raise Refusal(lines[-1].removeprefix("memctl: "), is_final=True)
    if len(ran.stdout) > OUTPUT_BYTES_MAX:
        raise Refusal(f"the answer has more than {OUTPUT_BYTES_MAX >> 20} MiB")
    return ran.stdout.decode("utf-8", "replace")


def settle(limit_s: float) -> None:
    """Waits until the daemon has stored what was recorded until now, for a limited time."""
    wanted: Optional[Any] = SESSION.status().get("produced")
    deadline = time.monotonic() + limit_s
    while wanted and time.monotonic() < deadline:
        status = SESSION.status()
        stored = status.get("stored")
        if stored is None or int(stored) + int(status.get("dropped") or 0) >= int(wanted):  # type: ignore[call-overload]
            return
        time.sleep(0.02)
