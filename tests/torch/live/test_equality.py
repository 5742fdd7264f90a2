"""What memctl stores of a live job is what PyTorch's own trace of the same run holds, event for event, on every rank.

The scenarios record themselves with `_record_memory_history` and write PyTorch's trace: both recorders run side by
side, and neither may disturb the other.
"""

from __future__ import annotations

import json
import pathlib
import pickle
from typing import Any

import pytest

from conftest import TESTS, Memctl, own_trace, place_of

# Two ranks show what ranks do to each other; one scenario has four.
RANKS = {"gpt_clean": 4}
SCENARIOS = [
    "gpt_clean",
    "gpt_val_graph_leak",
    "lstm_hidden_chain",
    "cnn_rank0_cache",
    "gpt_varlen_fragmentation",
    "gpt_curriculum",
    "gpt_ema_step_up",
    "cnn_cache_saturates",
    "oom_by_fragmentation",
]
# In each step of this scenario's epoch the graph of all earlier ones is walked: very many events.
EPOCHS = {"lstm_hidden_chain": "1"}


def check_events(memctl: Memctl, job: str, rank: int, folder: pathlib.Path) -> None:
    with (folder / f"rank{rank}.pickle").open("rb") as file:
        trace = own_trace(pickle.load(file)["device_traces"][rank])
    stored = memctl.events(job, rank, device=rank)
    assert len(trace) > 500
    message = f"rank {rank}: PyTorch has {len(trace)} events, {len(stored)} are stored"
    assert place_of(trace, stored) is not None, message


def check_epochs(answer: dict[str, Any], rank: int, folder: pathlib.Path) -> None:
    """Asserts that the bytes at each epoch's end equal those that the loop read."""
    said = {epoch["epoch"]: epoch for epoch in json.loads((folder / f"rank{rank}.json").read_text())["epochs"]}
    ends = {end["epoch"]: end for end in answer["ranks"][rank]["epoch_ends"]}
    assert said.keys() <= ends.keys()
    for epoch, counters in said.items():
        assert ends[epoch]["allocated_bytes"] == counters["allocated"], (rank, epoch)
        assert ends[epoch]["reserved_bytes"] == counters["reserved"], (rank, epoch)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_event_of_every_rank(memctl: Memctl, tmp_path: pathlib.Path, name: str) -> None:
    out, ranks = tmp_path / "recorded", RANKS.get(name, 2)
    settings = {"EPOCHS": EPOCHS.get(name, "3"), "REC_OUT": str(out), "MEMCTL_WORKLOADS": str(TESTS / "workloads")}
    run = memctl.record_ranks(name, ranks, TESTS / "fakegpu/tests/scenarios.py", name, **settings)
    assert run.code == 0, run
    answer = memctl.answer("query", "--job", name)
    assert answer["job"]["state"] == "finished"
    completeness = answer["completeness"]
    assert completeness["exact"] and completeness["events_dropped"] == 0 and completeness["gaps"] == 0, completeness
    assert [rank["rank"] for rank in answer["ranks"]] == list(range(ranks))
    for rank in range(ranks):
        check_events(memctl, name, rank, out / name)
        check_epochs(answer, rank, out / name)
