"""Memory that the program named, and NCCL's: with genuine torch, under the real `memctl run`, up to the responses."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest
import torch

from conftest import Memctl

MIB = 1 << 20
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

NAMED = """
import sys, torch
memory = torch.cuda.memory
if len(sys.argv) > 1:
    memory._record_memory_history()
kept = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda")]
if hasattr(memory, "_annotate_tensor"):
    memory._annotate_tensor(kept[0], "logits")
def cache():
    memory._set_memory_metadata("KV cache")
    kept.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda"))
    memory._set_memory_metadata("weights of layer 3")
    kept.append(torch.empty(96 << 20, dtype=torch.uint8, device="cuda"))
cache()
mempool = torch.cuda.MemPool()
memory._set_memory_metadata("graph's inputs")
with torch.cuda.use_mem_pool(mempool):
    kept.append(torch.empty(24 << 20, dtype=torch.uint8, device="cuda"))
memory._set_memory_metadata("")
if len(sys.argv) > 1:
    memory._dump_snapshot(sys.argv[1])
"""

NCCL = """
import torch, torch.distributed as dist
dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
torch.cuda.set_device(0)
other = dist.new_group([0])
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

pytestmark = pytest.mark.skipif(VERSION < (2, 10), reason="torch names memory from 2.10 on")


def owners(memctl: Memctl, job: str) -> tuple[dict[str, int], list[dict[str, Any]], dict[str, str]]:
    """Live bytes by name, private pools, and the line of every named site."""
    [rank] = memctl.answer("ledger", "--job", job, "--peak", "--blocks")["ranks"]
    named = {owner["owner"]: owner["live_bytes"] for owner in rank["owners"]}
    blocks: dict[str, int] = {}
    for block in rank["blocks"]:
        if block["owner"] is not None:
            blocks[block["owner"]] = blocks.get(block["owner"], 0) + block["bytes"]
    assert blocks == named, rank
    [sites] = memctl.answer("sites", "--job", job, "--peak")["ranks"]
    lines = {site["owner"]: site["site"]["function"] for site in sites["sites"] if site["owner"] is not None}
    return named, rank["pools"], lines


def check(memctl: Memctl, job: str) -> None:
    named, pools, lines = owners(memctl, job)
    expected = {"KV cache": 32 * MIB, "weights of layer 3": 96 * MIB, "graph's inputs": 24 * MIB}
    at = {"KV cache": "cache", "weights of layer 3": "cache", "graph's inputs": "<module>"}
    if VERSION >= (2, 14):
        expected, at = {**expected, "logits": 64 * MIB}, {**at, "logits": "<module>"}
    assert named == expected
    assert lines == at
    assert [(pool["reserved_bytes"], pool["owner"]) for pool in pools] == [(24 * MIB, "graph's inputs")]
    page = memctl("ledger", "--job", job, "--peak")
    assert "KV cache" in page.out and "graph's inputs" in page.out, page
    folded = memctl("sites", "--job", job, "--peak", "--folded").out
    assert any(line.endswith(f"[KV cache] {32 * MIB}") for line in folded.splitlines()), folded


def test_what_is_named_is_shown_by_its_name(memctl: Memctl, script: Any) -> None:
    recorded = memctl.record("live", sys.executable, str(script(NAMED)))
    assert recorded.code == 0, recorded
    check(memctl, "live")


def test_a_snapshot_has_its_names_and_gives_them_back(memctl: Memctl, script: Any) -> None:
    path, again = memctl.folder / "rank0.pickle", memctl.folder / "again.pickle"
    run = memctl.start([sys.executable, str(script(NAMED)), str(path)], {}).wait()
    assert run.code == 0, run
    assert memctl("import", str(path), "--job", "imported").code == 0
    check(memctl, "imported")
    marks = memctl.answer("timeline", "--job", "imported")["ranks"][0]["marks"]
    notes = [mark["name"] for mark in marks if mark["kind"] == "note"]
    assert notes == (["annotated: logits"] if VERSION >= (2, 14) else [])
    export = memctl("export", "--job", "imported", "--rank", "0", "--format", "memory-viz", "-f", str(again))
    assert export.code == 0, export
    kept = ("alloc", "annotate")
    with path.open("rb") as first, again.open("rb") as second:
        entries = [pickle.load(file)["device_traces"][0] for file in (first, second)]
    listed = [
        [(entry["action"], entry["addr"], entry.get("user_metadata", "")) for entry in trace if entry["action"] in kept]
        for trace in entries
    ]
    assert listed[0] == listed[1] and any(name == "KV cache" for _, _, name in listed[0])
    assert memctl("import", str(again), "--job", "again").code == 0
    check(memctl, "again")


def test_nccl_is_a_row_of_the_ledger_and_the_sum_stays(memctl: Memctl, script: Any) -> None:
    settings = {"FAKE_GPU_NCCL_MIB": "64", "FAKE_GPU_CONTEXT_MIB": "100"}
    recorded = memctl.record("nccl", sys.executable, str(script(NCCL)), **settings)
    assert recorded.code == 0, recorded
    [rank] = memctl.answer("ledger", "--job", "nccl", "--peak")["ranks"]
    # The group that no collective has used is not queried.
    assert rank["nccl_bytes"] == 64 * MIB, rank
    parts = ("allocated_bytes", "cached_bytes", "nccl_bytes", "context_bytes", "others_bytes", "unmeasured_bytes")
    assert sum(rank[part] or 0 for part in parts) + (rank["unexplained_bytes"] or 0) == rank["device_used_bytes"], rank
    assert "+ NCCL" in memctl("ledger", "--job", "nccl", "--peak").out
