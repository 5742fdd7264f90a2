"""Other activity in a training process: workers, forks, PyTorch's own recorder, graphs, compilers, devices, jobs.

Guarantees checked: memctl affects none of it, memctl's record stays complete, and only trainers are recorded.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from conftest import Daemon, Memctl, Plain, Run, both, own_trace, place_of, same

HEAD = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
import small
"""


def record(memctl: Memctl, plain: Plain, path: Any, job: str, **settings: str) -> Run:
    recorded, expected = both(
        lambda: memctl.record(job, sys.executable, str(path), **settings),
        lambda: plain(memctl, path, **settings),
    )
    same(expected, recorded)
    assert recorded.code == 0, recorded
    return recorded


def only_rank(memctl: Memctl, job: str) -> dict[str, Any]:
    """The one rank of a job that was recorded whole."""
    answer = memctl.answer("query", "--job", job)
    assert answer["completeness"]["exact"] and answer["completeness"]["events_dropped"] == 0, answer
    [rank] = answer["ranks"]
    assert rank["failure"] is None and rank["state"] == "finished", rank
    return rank


LOADERS = """
class Pids(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, place):
        return torch.tensor([float(os.getpid() != PARENT), float("memctl_agent._native" in sys.modules)])
PARENT = os.getpid()
if __name__ == "__main__":
    training = small.Training()
    training.steps(3)
    seen = torch.cat(list(DataLoader(Pids(), batch_size=4, num_workers=2, multiprocessing_context="fork")))
    print("in workers", int(seen[:, 0].sum()), flush=True)
    training.steps(3)
    training.report()
"""
FORKS = """
training = small.Training()
training.steps(3)
child = os.fork()
if child == 0:
    # No CUDA after a fork; what memctl would do wrong here it would do in any call of it.
    state = small.status()
    os._exit(0 if not state or not state.get("attached") else 1)
print("child", os.waitpid(child, 0)[1], flush=True)
training.steps(3)
training.report()
"""
SPAWNS = """
def work(rank, store):
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    training = small.Training()
    training.steps(5)
    small.tell(f"spawned-{rank}", small.status())
    training.report()
if __name__ == "__main__":
    import torch.multiprocessing
    torch.multiprocessing.spawn(work, (f"file://{os.environ['TMPDIR']}/store",), nprocs=2, join=True)
"""


@pytest.mark.parametrize(("name", "said"), [("LOADERS", "in workers 16"), ("FORKS", "child 0")])
def test_children_that_are_no_trainers(memctl: Memctl, script: Any, plain: Plain, name: str, said: str) -> None:
    run = record(memctl, plain, script(HEAD + globals()[name]), name)
    assert said in run.out, run
    assert only_rank(memctl, name)["events"] > 300


def test_spawned_workers_are_trainers(memctl: Memctl, script: Any) -> None:
    path = script(HEAD + SPAWNS)
    run = memctl.record("spawned", sys.executable, str(path))
    # Gloo prints lines of its own.
    results = [line for line in run.out.splitlines() if line.startswith("result")]
    assert run.code == 0 and len(results) == 2 and len(set(results)) == 1, run
    for rank in range(2):
        assert run.reported(f"spawned-{rank}")["level"] == "full"
    # No variable has their ranks; the process group has them.
    answer = memctl.answer("query", "--job", "spawned")
    assert [(rank["rank"], rank["state"], rank["steps"]) for rank in answer["ranks"]] == [
        (0, "finished", 5),
        (1, "finished", 5),
    ], answer
    assert answer["completeness"]["exact"] and answer["job"]["world_size"] == 2, answer


HISTORY = """
import pickle
ATTACH_FIRST = WHEN == "after"
def history(on):
    torch.cuda.memory._record_memory_history("all" if on else None, stacks="python", max_entries=100000)
def recorded():
    return torch.cuda.memory._snapshot()["device_traces"][0]
if not ATTACH_FIRST:
    # Without initialising CUDA before we attach there is no before: the launcher attaches within this call.
    torch.cuda.init()
    history(True)
training = small.Training()
if ATTACH_FIRST:
    training.steps(3)
    history(True)
training.steps(10)
trace = recorded()
history(False)
small.tell("still", small.status()["produced"] if small.status() else None)
training.steps(5)
small.tell("later", small.status()["produced"] if small.status() else None)
print("own", len(trace))
functions = {frame["name"] for entry in trace for frame in entry["frames"]}
print("step" in functions, "steps" in functions, flush=True)
pickle.dump(trace, open(os.environ["TRACE"] + str(os.getpid()), "wb"))
small.tell("trace", os.environ["TRACE"] + str(os.getpid()))
training.report()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_beside_pytorchs_own_recorder(memctl: Memctl, script: Any, plain: Plain, tmp_path: Any, when: str) -> None:
    import pickle

    path = script(HEAD + HISTORY.replace("WHEN", repr(when)))
    run = record(memctl, plain, path, "history", TRACE=str(tmp_path / "trace"))
    assert "True True" in run.out, run
    # memctl went on recording when PyTorch's recorder was switched off.
    assert run.reported("later") > run.reported("still") > 300
    assert only_rank(memctl, "history")["events"] >= run.reported("later")
    with open(run.reported("trace"), "rb") as file:
        theirs = own_trace(pickle.load(file))
    ours = memctl.events("history")
    assert len(theirs) > 300 and place_of(theirs, ours) is not None, (len(theirs), len(ours))
    [rank] = memctl.answer("sites", "--job", "history", "--end")["ranks"]
    assert any(frame["function"] == "Training.steps" for site in rank["sites"] for frame in site["stack"]), rank


GRAPHS = """
training = small.Training()
training.steps(3)
static = torch.zeros(8, 32, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.no_grad():
    for _ in range(3):
        training.model(static)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph), torch.no_grad():
    out = training.model(static)
for _ in range(5):
    graph.replay()
training.see(out)
training.steps(3)
print("pool", graph.pool() is not None, flush=True)
training.report()
"""
COMPILED = """
for backend in ("eager", "aot_eager"):
    training = small.Training(compiled=backend)
    training.steps(5)
    training.report()
from torch._dynamo.utils import counters
print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()), flush=True)
"""
EXPANDABLE = """
training = small.Training()
for number in range(6):
    training.leak((number + 1) << 25)
    training.steps(3)
del training.kept[::2]
torch.cuda.empty_cache()
training.steps(3)
training.report()
"""


def test_graphs(memctl: Memctl, script: Any, plain: Plain) -> None:
    run = record(memctl, plain, script(HEAD + GRAPHS), "graphs")
    assert "pool True" in run.out
    assert only_rank(memctl, "graphs")["steps"] == 6


def test_compiled(memctl: Memctl, script: Any, plain: Plain) -> None:
    # The compiler's cache from one run must not change what the other prints.
    run = record(memctl, plain, script(HEAD + COMPILED), "compiled", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    # memctl adds no graph breaks: `same` compared the line. This checks that anything was compiled at all.
    assert "graphs 0" not in run.out and "graphs" in run.out, run
    assert only_rank(memctl, "compiled")["steps"] == 10


def test_expandable_segments(memctl: Memctl, script: Any, plain: Plain) -> None:
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    record(memctl, plain, script(HEAD + EXPANDABLE), "expandable", **conf)
    rank = only_rank(memctl, "expandable")
    assert rank["allocator_conf"].startswith("expandable_segments:True")
    actions = {event[0] for event in memctl.events("expandable")}
    assert {"segment_map", "segment_unmap"} <= actions and "segment_alloc" not in actions, actions


DEVICES = """
trainings = [small.Training(f"cuda:{number}") for number in range(3)]
for number, training in enumerate(trainings):
    training.steps(4 + number)
    training.leak((number + 1) << 21)
    small.tell(f"allocated-{number}", torch.cuda.memory_allocated(number))
for training in trainings:
    training.report()
"""


def test_several_devices(memctl: Memctl, script: Any, plain: Plain) -> None:
    run = record(memctl, plain, script(HEAD + DEVICES), "devices", FAKE_GPU_COUNT="3")
    answer = memctl.answer("sites", "--job", "devices", "--end")
    found = {rank["device"]: rank["allocated_bytes"] for rank in answer["ranks"]}
    assert found == {number: run.reported(f"allocated-{number}") for number in range(3)}, answer
    assert memctl.answer("query", "--job", "devices")["completeness"]["exact"]


TWO_JOBS = """
training = small.Training()
for job in ("first", "second"):
    small.attach_if_wanted(job if "JOBS" in os.environ else None)
    training.steps(6)
    training.leak(1 << 21)
    if "JOBS" in os.environ:
        import memctl_agent
        small.tell(f"end-{job}", memctl_agent.detach())
    training.steps(2)
small.tell("status", small.status())
training.report()
"""


def test_two_jobs_one_after_the_other(memctl: Memctl, script: Any, plain: Plain) -> None:
    path, daemon = script(HEAD + TWO_JOBS), Daemon(memctl)
    try:
        at = {"JOBS": "1", "MEMCTL_DAEMON": daemon.url}
        run = memctl.start([sys.executable, str(path)], at).wait()
        same(plain(memctl, path), run)
        assert run.reported("status")["attached"] is False
        for job in ("first", "second"):
            end = run.reported(f"end-{job}")
            # A busy daemon may store the last of them after the session has ended: the query takes in what waits.
            assert end["produced"] > 300 and end["dropped"] == 0, end
            answer = memctl.answer("query", "--job", job, "--daemon", daemon.url)
            [rank] = answer["ranks"]
            assert rank["events"] == end["produced"] and rank["state"] == "finished" and rank["steps"] == 6, rank
            assert answer["completeness"]["exact"], answer["completeness"]
    finally:
        daemon.stop()
