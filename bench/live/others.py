"""CuPy, JAX and a cudarc program on a real GPU: PASS or FAIL for each claim, with figures.

    python others.py [--memctl PATH] [--cuda-trainer PATH [--without-kernels]] [-o result.json]

Needs the wheel. The parts need CuPy, JAX for GPUs, and the agent's built example `cuda_trainer`. A part without what it
needs is reported as SKIP. CuPy's events are compared with those of a second hook of CuPy, JAX's samples with
`memory_stats()`.
Every part runs in a process of its own against one daemon that this script starts and stops. Exit code 1 on any FAIL.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

LIMIT_S = 300

CUPY = r"""
import json, sys, time
try:
    import cupy
    from cupy.cuda import memory_hook
except ImportError as error:
    print("SKIP", error); raise SystemExit(0)
import memctl_agent, memctl_agent.cupy as memctl_cupy

class Ledger(memory_hook.MemoryHook):
    name = "ledger"
    def __init__(self): self.events = []
    def alloc_postprocess(self, **e):
        if e["mem_ptr"]: self.events.append(("segment_alloc", e["mem_size"], e["mem_ptr"]))
    def malloc_postprocess(self, **e):
        if e["mem_ptr"]: self.events.append(("alloc", e["mem_size"], e["mem_ptr"]))
    def free_preprocess(self, **e):
        self.events += [(name, e["mem_size"], e["mem_ptr"]) for name in ("free_requested", "free_completed")]

def pairs(count=20_000):
    begun = time.perf_counter_ns()
    for _ in range(count):
        block = cupy.cuda.alloc(4096)
        del block
    return (time.perf_counter_ns() - begun) / count

def keep(kept):
    kept.append(cupy.empty(1 << 20, dtype=cupy.uint8))  # the leak

pairs(1000)
plain = min(pairs() for _ in range(5))
cupy.get_default_memory_pool().free_all_blocks()
ledger = Ledger()
assert memctl_cupy.install(job="cupy"), memctl_agent.status()
memctl_cupy.BOUNDARY_S_MIN = 0.0
pool, kept, ends, step, side = cupy.get_default_memory_pool(), [], [], 0, cupy.cuda.Stream(non_blocking=True)
with ledger:
    for epoch in range(4):
        with memctl_agent.epoch(epoch):
            for _ in range(25):
                with memctl_agent.step(step):
                    arrays = [cupy.empty((rows, 1000), dtype=cupy.float32) for rows in (3, 70, 500, 4000)]
                    with side:
                        arrays.append(cupy.empty(123_457, dtype=cupy.uint8))
                    del arrays
                step += 1
            keep(kept)
            if epoch == 1:
                pool.free_all_blocks()
            ends.append((pool.used_bytes(), pool.total_bytes()))
    try:
        cupy.cuda.alloc(1 << 50)
        failed = False
    except cupy.cuda.memory.OutOfMemoryError:
        failed = True
recorded = len(ledger.events)
hooked = min(pairs(5000) for _ in range(5))
status = memctl_agent.status()
delivered = memctl_agent.detach()
json.dump({"version": cupy.__version__, "events": ledger.events, "ends": ends, "failed": failed, "status": status,
    "delivered": delivered, "plain_ns": plain, "hooked_ns": hooked}, open(sys.argv[1], "w"))
"""

JAX = r"""
import json, sys
try:
    import jax, jax.numpy as jnp
except ImportError as error:
    print("SKIP", error); raise SystemExit(0)
import memctl_agent, memctl_agent.jax as memctl_jax
if jax.default_backend() not in ("gpu", "cuda", "rocm"):
    print("SKIP jax has no GPU here:", jax.default_backend()); raise SystemExit(0)
assert memctl_jax.watch(job="jax", every_s=0.2), memctl_agent.status()
kept, work = [], jax.jit(lambda x: (x @ x).sum())
for epoch in range(2):
    with memctl_agent.epoch(epoch):
        for step in range(20):
            with memctl_agent.step(epoch * 20 + step):
                work(jnp.ones((2048, 2048))).block_until_ready()
        # The end of the epoch takes the last sample.
        kept.append(jnp.ones((1024, 1024)).block_until_ready())
stats = jax.local_devices()[0].memory_stats()
status = memctl_agent.status()
delivered = memctl_agent.detach()
json.dump({"version": jax.__version__, "stats": stats, "status": status, "delivered": delivered,
    "torch": "torch" in sys.modules}, open(sys.argv[1], "w"))
"""


class Checks:
    """The results of all checks, and whether one of them failed."""

    def __init__(self) -> None:
        self.results: dict[str, dict[str, Any]] = {}

    def check(self, name: str, good: bool, figure: object) -> None:
        """Says PASS or FAIL with a figure."""
        self.results[name] = {"result": "PASS" if good else "FAIL", "figure": figure}
        print(f"{self.results[name]['result']}  {name}: {figure}", flush=True)

    def skip(self, name: str, why: str) -> None:
        """Says that a part was not run."""
        self.results[name] = {"result": "SKIP", "figure": why}
        print(f"SKIP  {name}: {why}", flush=True)

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        return any(result["result"] == "FAIL" for result in self.results.values())


class Daemon:
    """A daemon of our own, and questions to it."""

    def __init__(self, memctl: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.memctl, self.url = memctl, f"http://127.0.0.1:{port}"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMCTL_")}
        self.process = subprocess.Popen(
            [memctl, "daemon", "--data-dir", str(folder / "data"), "--listen", f"127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert "listens on" in first, f"the daemon did not come up: {first!r}"

    def ask(self, *arguments: str) -> str:
        """What the command line answers."""
        done = subprocess.run(
            [self.memctl, "--daemon", self.url, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def report(self, job: str) -> Any:
        """The job's JSON."""
        return json.loads(self.ask("query", "--job", job, "-o", "json"))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a program that sends its data to this daemon."""
        environment = {**self.environment, "MEMCTL_DAEMON": self.url}
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(30)


def run_part(daemon: Daemon, checks: Checks, name: str, script: str, folder: Path) -> Optional[dict[str, Any]]:
    """Runs a part's script. Returns the JSON that it wrote, or `None` if it wrote nothing."""
    source, answer = folder / f"{name}_part.py", folder / f"{name}.json"
    source.write_text(script)
    done = daemon.run(sys.executable, str(source), str(answer))
    if done.stdout.startswith("SKIP"):
        checks.skip(name, done.stdout[5:].strip())
        return None
    checks.check(f"{name} runs", done.returncode == 0, done.stderr.strip()[-2000:] or "no complaint")
    return json.loads(answer.read_text()) if answer.exists() else None


def cupy_part(daemon: Daemon, checks: Checks, folder: Path) -> None:
    """Compares the events with the ledger and the bytes with CuPy's pool, and reports the cost."""
    truth = run_part(daemon, checks, "cupy", CUPY, folder)
    if truth is None:
        return
    path = folder / "cupy.csv"
    daemon.ask("export", "--job", "cupy", "--format", "csv", "-f", str(path))
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    stored = [(row["action"], int(row["size_bytes"]), int(row["address"] or "0", 0)) for row in rows]
    ooms = [event for event in stored if event[0] == "oom"]
    events = [event for event in stored if event[0] not in ("segment_free", "oom")]
    ledger = [tuple(event) for event in truth["events"]]
    checks.check("cupy version", True, truth["version"])
    checks.check("cupy stored = CuPy's own hook", events[: len(ledger)] == ledger and len(ledger) > 1000, len(ledger))
    checks.check("cupy failed request is stored", truth["failed"] and len(ooms) == 1 and ooms[0][1] == 1 << 50, ooms)
    checks.check("cupy level full, nothing dropped", records_everything(truth["status"]), brief(truth["status"]))
    checks.check("cupy delivered", bool(truth["delivered"]["delivered"]), truth["delivered"])
    report = daemon.report("cupy")
    ends = [[end["allocated_bytes"], end["reserved_bytes"]] for end in report["ranks"][0]["epoch_ends"]]
    checks.check("cupy epoch ends = pool's used and total bytes", ends[:4] == truth["ends"], ends)
    sites = [(growth["site"], growth["ranks"][0]["bytes_per_epoch"]) for growth in report["growth"]]
    checks.check(
        "cupy growth names the line",
        any(site["function"] == "keep" and per_epoch == 1 << 20 for site, per_epoch in sites),
        sites,
    )
    checks.check("cupy device memory and UUID", has_device(report["ranks"][0]), brief_rank(report["ranks"][0]))
    checks.check(
        "cupy cost of an allocation and its free, ns",
        True,
        {key: round(truth[key]) for key in ("plain_ns", "hooked_ns")},
    )


def records_everything(status: dict[str, Any]) -> bool:
    """Whether everything is recorded."""
    return status["level"] == "full" and status["dropped"] == 0 and not status["trouble"]


def brief(status: dict[str, Any]) -> dict[str, Any]:
    """The fields of a status that the results show."""
    return {key: status.get(key) for key in ("level", "produced", "stored", "dropped", "stacks", "trouble")}


def has_device(rank: dict[str, Any]) -> bool:
    """Whether the driver reported the device."""
    sample = rank.get("sample") or {}
    return str(rank["gpu_uuid"]).startswith("GPU-") and (sample.get("device_used_bytes") or 0) > 0


def brief_rank(rank: dict[str, Any]) -> dict[str, Any]:
    """The fields of a rank that the results show."""
    return {key: rank.get(key) for key in ("gpu_uuid", "gpu_name", "device_total_bytes", "sample")}


def jax_part(daemon: Daemon, checks: Checks, folder: Path) -> None:
    """Compares the last sample with JAX's own counters."""
    truth = run_part(daemon, checks, "jax", JAX, folder)
    if truth is None:
        return
    rank = daemon.report("jax")["ranks"][0]
    sample, stats = rank.get("sample") or {}, truth["stats"]
    checks.check("jax version", True, truth["version"])
    checks.check("jax counters", stats["bytes_in_use"] > 0, stats)
    checks.check(
        "jax last sample = bytes_in_use", sample.get("allocated_bytes") == stats["bytes_in_use"], brief_rank(rank)
    )
    checks.check("jax steps and epochs", (rank["epochs"], rank["steps"]) == (2, 40), [rank["epochs"], rank["steps"]])
    checks.check("jax level counters, without torch", is_counting(truth), brief(truth["status"]))
    checks.check("jax delivered", bool(truth["delivered"]["delivered"]), truth["delivered"])


def is_counting(truth: dict[str, Any]) -> bool:
    """Whether only counters are recorded, without PyTorch."""
    return truth["status"]["level"] == "counters" and not truth["status"]["trouble"] and not truth["torch"]


def trainer_part(daemon: Daemon, checks: Checks, path: str, without_kernels: bool) -> None:
    """The Rust example with and without its leak."""
    for job, flags, growth in (("leaking", ["--leak"], 1 << 20), ("sound", [], 0)):
        flags = [*flags, *(["--without-kernels"] if without_kernels else [])]
        done = daemon.run(path, "--job", job, *flags)
        checks.check(f"cuda_trainer {job} runs", done.returncode == 0, (done.stdout + done.stderr).strip()[-1000:])
        if done.returncode:
            continue
        report = daemon.report(job)
        rank = report["ranks"][0]
        events = 1 + 2 + 4 * 64 * 9 + (4 * 3 if growth else 0)
        checks.check(
            f"cuda_trainer {job} events",
            (rank["events"], rank["growth_bytes_per_epoch"]) == (events, growth),
            [rank["events"], rank["growth_bytes_per_epoch"]],
        )
        checks.check(f"cuda_trainer {job} device", has_device(rank), brief_rank(rank))


def main() -> int:
    """Runs all parts."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--memctl", default=shutil.which("memctl"), help="the command line (default: on PATH)")
    options.add_argument("--cuda-trainer", help="the agent's built example")
    options.add_argument("--without-kernels", action="store_true", help="cuda_trainer: run no kernels")
    options.add_argument("-o", "--output", type=Path, help="results as JSON")
    chosen = options.parse_args()
    if chosen.memctl is None:
        options.error("memctl is not on PATH: install the wheel, or name it with --memctl")
    checks = Checks()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        daemon = Daemon(chosen.memctl, folder)
        try:
            cupy_part(daemon, checks, folder)
            jax_part(daemon, checks, folder)
            if chosen.cuda_trainer:
                trainer_part(daemon, checks, chosen.cuda_trainer, chosen.without_kernels)
            else:
                checks.skip("cuda_trainer", "name the built example with --cuda-trainer")
        finally:
            daemon.stop()
    if chosen.output is not None:
        chosen.output.write_text(json.dumps(checks.results, indent=1) + "\n")
    return int(checks.failed)


if __name__ == "__main__":
    sys.exit(main())
