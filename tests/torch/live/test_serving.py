"""Programs that serve: without training and without marked steps, retained memory is still found.

Genuine torch under `memctl run`. The programs are paced, because windows are intervals of time: a request takes some
milliseconds, as it does on a device.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from conftest import Going, Memctl

# Where no steps are marked, the analysis needs about a minute of growth.
REQUESTS = 800
# A small decoder: keys and values of every layer, longer for longer prompts.
SERVER = """
import collections, sys, time
import torch

LAYERS = 4
model = torch.nn.ModuleList(torch.nn.Linear(256, 768) for _ in range(LAYERS)).cuda()

@torch.inference_mode()
def serve(length):
    x = torch.randn(length, 256, device="cuda")
    past = []
    for layer in model:
        query, key, value = layer(x).chunk(3, dim=1)
        past.append((key.clone(), value.clone()))
        x = torch.softmax(query @ key.T, dim=1) @ value
    return past

kept = collections.OrderedDict()
for request in range(REQUESTS):
    kept[request] = serve(64 + request % 7 * 16)
    if sys.argv[1] == "lru" and len(kept) > 16:
        kept.popitem(last=False)
    time.sleep(0.1)
"""

GRAPHS = """
import time
import torch

layers = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
graphs = {}

def capture(length):
    x = torch.zeros(length, 512, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        layers(x)  # what the libraries set up cannot be captured
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layers(x)
    return graph, x, y

for request in range(REQUESTS):
    length = 64 + request // 4
    if length not in graphs:
        graphs[length] = capture(length)
    graphs[length][0].replay()
    time.sleep(0.1)
"""


# A program, its argument, and the allocator's settings.
PROGRAMS = {
    "kept": (SERVER, "all", ""),
    "bounded": (SERVER, "lru", ""),
    "graphs": (GRAPHS, "", ""),
    "expandable": (GRAPHS, "", "expandable_segments:True"),
    # An allocator without events: its counters are sampled at intervals.
    "counted": (SERVER, "all", "backend:cudaMallocAsync"),
    "counted-bounded": (SERVER, "lru", "backend:cudaMallocAsync"),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each program's report. They run at the same time, because they mostly wait."""
    started: dict[str, tuple[Memctl, Going]] = {}
    for name, (source, argument, conf) in PROGRAMS.items():
        memctl = Memctl(tmp_path_factory.mktemp(name))
        script = memctl.folder / "serve.py"
        script.write_text(source.replace("REQUESTS", str(REQUESTS)))
        settings = {"PYTORCH_CUDA_ALLOC_CONF": conf, "OMP_NUM_THREADS": "1"}
        going = memctl.start_recorded(name, sys.executable, str(script), argument, settings=settings)
        started[name] = (memctl, going)
    runs = {name: going.wait() for name, (_, going) in started.items()}
    failed = {name: run for name, run in runs.items() if run.code != 0}
    assert not failed, failed
    return {name: memctl.answer("query", "--job", name) for name, (memctl, _) in started.items()}


@pytest.fixture(scope="module")
def found(reports: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Each program's findings of severity warning or higher."""

    def hurting(report: dict[str, Any]) -> list[dict[str, Any]]:
        return [finding for finding in report["findings"] if finding["severity"] != "info"]

    return {name: hurting(report) for name, report in reports.items()}


def test_caches_that_are_kept_are_a_leak(found: dict[str, list[dict[str, Any]]]) -> None:
    kept = found["kept"]
    assert [finding["kind"] for finding in kept] == ["leak"], kept
    assert kept[0]["site"]["function"] == "serve", kept[0]
    assert kept[0]["site"]["file"].endswith("serve.py"), kept[0]


def test_the_same_with_a_bound_is_none(found: dict[str, list[dict[str, Any]]]) -> None:
    assert found["bounded"] == []


@pytest.mark.parametrize("name", ["graphs", "expandable"])
def test_graphs_that_are_captured_per_length(found: dict[str, list[dict[str, Any]]], name: str) -> None:
    pools = [finding for finding in found[name] if finding["kind"] == "private_pools"]
    assert len(pools) == 1, found[name]
    assert pools[0]["site"]["function"] == "capture", pools[0]


def test_where_only_counters_are_known_they_are_judged(
    reports: dict[str, dict[str, Any]], found: dict[str, list[dict[str, Any]]]
) -> None:
    [kept] = found["counted"]
    assert kept["kind"] == "leak" and kept["first_seen"]["boundary"] == "window", kept
    assert kept["site"] is None and "only counters were recorded, so no line can be named" in kept["title"], kept
    assert kept["bytes_per_minute"] > 0, kept
    missing = {gap["kind"]: gap["reason"] for gap in reports["counted"]["not_judged"]}
    assert "only the allocator's counters were recorded" in missing["leak"], missing
    assert "only counters" in missing["oom"] and "only counters" in missing["fragmentation"], missing
    # Figures that need no events are still measured.
    assert "host_growth" not in missing and "outside_allocator" not in missing, missing
    assert found["counted-bounded"] == []
