"""A summary of this process as one flat dict: PyTorch's counters, and the daemon's verdict if it answers in time.

Guarantees: CUDA is never initialised, and no counter is reset. A separate process asks the daemon, and the
caller waits at most for the time that it allows. No exception is raised: the dict contains the reason instead.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Optional
from urllib.parse import quote

from memctl_agent import _command, _torch
from memctl_agent._session import SESSION

# The page's address by the flags that name the daemon. A daemon's page does not move while a process runs.
_pages: dict[tuple[str, ...], Optional[str]] = {}


def summary(daemon_s: float) -> dict[str, Any]:
    """The figures of this process, and for at most `daemon_s` seconds those of the daemon."""
    found: dict[str, Any] = {**state(), **counters()}
    if daemon_s > 0:
        found.update(of_daemon(daemon_s))
    return found


def state() -> dict[str, Any]:
    """What is recorded: job, rank, level, and the open epoch and step."""
    status = SESSION.status()
    found = {"job": status.get("job"), "rank": status.get("rank"), "recording": status.get("level", "off")}
    book = SESSION.book
    return {**found, "epoch": book.epoch, "step": book.step}


def counters(used: Optional[list[int]] = None) -> dict[str, Any]:
    """PyTorch's counters, as sums over the devices that this process uses; `reason` if it uses none. Reading a device
    takes tens of microseconds. If `used` has devices, only these are read. Otherwise those in use are added to it."""
    torch = sys.modules.get("torch")
    if torch is None or not _torch.has_cuda(torch) or not torch.cuda.is_initialized():
        return {"reason": "CUDA is not in use in this process"}
    found: dict[str, Any] = {}
    found_used: list[int] = []
    for ordinal in used or range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats_as_nested_dict(ordinal)
        levels = {
            f"{prefix}{name}_bytes": int(stats.get(f"{name}_bytes", {}).get("all", {}).get(key, 0))
            for prefix, key in (("", "current"), ("peak_", "peak"))
            for name in ("allocated", "reserved")
        }
        if not levels["peak_reserved_bytes"]:
            continue
        if used is not None and ordinal not in used:
            found_used.append(ordinal)
        levels["alloc_retries"] = int(stats.get("num_alloc_retries", 0))
        levels["ooms"] = int(stats.get("num_ooms", 0))
        for name, value in levels.items():
            found[name] = found.get(name, 0) + value
    if used is not None:
        used += found_used
    return found or {"reason": "no GPU memory was allocated in this process"}


def of_daemon(limit_s: float) -> dict[str, Any]:
    """The verdict about the job, and this rank's floor and growth; `daemon_reason` if there is no answer in time."""
    deadline = time.monotonic() + limit_s
    try:
        text = _command.ask("query", _command.own_job(), "-o", "json", limit_s=limit_s)
        answer = json.loads(text)
        job, verdict = answer["job"], answer["verdict"]
        found: dict[str, Any] = {
            "verdict": verdict["kind"],
            "verdict_cause": verdict["cause"],
            "verdict_sentence": verdict["sentence"],
            "findings": len(answer["findings"]),
            **_of_rank(answer["ranks"]),
        }
        page = _page(deadline - time.monotonic())
        found["page_url"] = None if page is None else f"{page}jobs/{quote(str(job['id']), safe='')}"
        return found
    except _command.Refusal as refusal:
        return {"daemon_reason": str(refusal)}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return {"daemon_reason": f"memctl's answer was not understood ({type(error).__name__}: {error})"}


def _of_rank(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of this process's row. The floor is the level at the end of the last epoch."""
    mine = next((row for row in ranks if row["rank"] == SESSION.status().get("rank")), None)
    if mine is None:
        return {}
    found = {"growth_bytes_per_epoch": mine["growth_bytes_per_epoch"], "epochs": mine["epochs"], "steps": mine["steps"]}
    ends = mine["epoch_ends"]
    if ends:
        found["floor_bytes"] = ends[-1]["allocated_bytes"]
        found["epoch_peak_allocated_bytes"] = ends[-1]["epoch_peak_allocated_bytes"]
    return found


def _page(limit_s: float) -> Optional[str]:
    """The address of the daemon's page. The local service's page has an address only while `memctl ui` runs."""
    place = tuple(_command.connection_flags())
    if not place or place[0] != "--daemon":
        return None
    if place not in _pages:
        if limit_s <= 0:
            return None
        try:
            _pages[place] = _command.run("ui", limit_s=limit_s).strip() or None
        except _command.Refusal as refusal:
            if refusal.is_final:
                _pages[place] = None
            return None
    return _pages[place]
