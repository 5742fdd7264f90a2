"""Causes of retained memory, live with genuine torch: found ones with their sentence, and ones reported as not visible.

Each runs in a process of its own (`holders_causes.py`), because what it keeps would be in the way of the next. The
budget is generous: what is found must not depend on how busy the machine is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).with_name("holders_causes.py")
STEPS = 24
LIMIT_S = 600

# Cause, kind, sentence, blocks that it holds.
CAUSES: dict[str, tuple[str, str, int]] = {
    "list": ("list", "list `KEPT` of module `__main__`, 24 tensors", STEPS),
    "list_of_dicts": ("list", "list `RECORDS` of module `__main__`, 24 tensors", STEPS),
    "list_of_objects": ("list", "list `RESULTS` of module `__main__`, 24 tensors", STEPS),
    "dict": ("dict", "dict `CACHE` of module `__main__`, 24 tensors", STEPS),
    "deque": ("deque", "deque `history` of `Trainer`, 24 tensors", STEPS),
    "attribute": ("attribute", "tensor `last` of `Trainer`", 1),
    "class": ("attribute", "tensor `shared` of class `Trainer`", 1),
    "slot": ("attribute", "tensor `kept` of `Slotted`", 1),
    "views": ("list", "list `KEPT` of module `__main__`, 24 tensors", STEPS),
    "closure": ("closure", "cell `acts` of function `remember`, 24 tensors", STEPS),
    "hook": ("hook", "cell `acts` of function `hook`, 24 tensors, referenced by 8 forward hooks of `Mlp`", STEPS),
    "exception": (
        "exception",
        "tensor `activations`, a local variable of function `fails`, kept by the traceback of exception `ValueError` "
        "in list `ERRORS` of module `__main__`",
        STEPS,
    ),
    "buffer": ("module_buffer", "buffer `seen` of module `Mlp`, 1 tensor", 1),
    "cycle": ("cycle", "an unreachable cycle of `Node`: the garbage collector is disabled", STEPS),
    "thread_local": (
        "thread_local",
        "list `kept`, local to a thread, of `_local` object `LOCAL` of module `__main__`, 24 tensors",
        STEPS,
    ),
    "frame": ("list", "list `losses`, a local variable of function `in_frame`, 24 tensors", STEPS),
    "other_thread": ("list", "list `mine`, a local variable of function `works`, 24 tensors", STEPS),
    "generator": ("list", "list `batches`, a local variable of function `loads`, 24 tensors", STEPS),
    "gradient": ("autograd", "attribute `grad` of the tensors in list `KEPT` of module `__main__`", STEPS),
    "context": (
        "autograd",
        "the context of `KeepsBackward`, reached from list `KEPT` of module `__main__`",
        STEPS,
    ),
}
# Memory that only C or C++ holds.
NOT_SEEN = ("extension", "cpp")


def run(causes: list[str]) -> list[dict[str, Any]]:
    """The results of searches, each in a process with its cause."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *causes], capture_output=True, text=True, env=environment, timeout=LIMIT_S
    )
    assert done.returncode == 0, (causes, done.stderr[-4000:])
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(causes), (causes, done.stdout[-4000:])
    return answers


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """All causes, in two halves at the same time."""
    causes = [*CAUSES, *NOT_SEEN, "graph", "packed"]
    halves = [causes[::2], causes[1::2]]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, halves))
    return {cause: answer for half, few in zip(halves, found) for cause, answer in zip(half, few)}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_found_and_nothing_else(answers: dict[str, dict[str, Any]], cause: str) -> None:
    kind, sentence, blocks = CAUSES[cause]
    answer = answers[cause]
    assert [(holder["kind"], holder["blocks"]) for holder in answer["holders"]] == [(kind, blocks)], answer
    [holder] = answer["holders"]
    assert holder["sentence"].startswith(sentence), holder
    assert answer["found_blocks"] == blocks and answer["complete"], answer
    assert holder["bytes"] >= blocks * 80_000 and len(holder["chain"]) <= 12, holder
    assert all(len(step) <= 200 for step in holder["chain"]), holder


def test_a_graph_is_found_by_what_it_saved(answers: dict[str, dict[str, Any]]) -> None:
    answer = answers["graph"]
    graph = "the graph of the tensors in deque `history` of `Trainer`, 24 tensors (saved by `ExpBackward0`)"
    leaf = "a leaf of the graph of the tensors in deque `history` of `Trainer`, 24 tensors"
    found = {holder["sentence"]: holder for holder in answer["holders"]}
    assert found.keys() == {graph, leaf}, answer
    assert all(holder["kind"] == "autograd" and holder["blocks"] == STEPS for holder in answer["holders"]), answer
    chain = found[graph]["chain"]
    assert chain[-2:] == ["Tensor", "saved by `ExpBackward0`"] and chain[0] == "module `__main__`", chain


@pytest.mark.parametrize("cause", NOT_SEEN)
def test_what_no_python_object_holds_is_said_to_be_held_by_cpp(answers: dict[str, dict[str, Any]], cause: str) -> None:
    answer = answers[cause]
    [holder] = answer["holders"]
    assert (holder["holder"], holder["blocks"], holder["chain"]) == ("cpp", answer["live"], []), answer
    assert answer["live"] >= STEPS and "no Python object refers to them" in holder["sentence"], answer


def test_what_a_pack_hook_returned_is_never_unpacked(answers: dict[str, dict[str, Any]]) -> None:
    answer = answers["packed"]
    assert answer["live"] == STEPS and answer["unpacked"] == 0, answer
    if hasattr(torch._C._autograd.SavedTensor, "data"):
        [holder] = answer["holders"]
        of = "the graph of the tensors in list `KEPT` of module `__main__`, 24 tensors"
        assert holder["sentence"] == f"{of} (saved by `MulBackward0` through a pack hook)", answer
        assert (holder["kind"], holder["blocks"], answer["complete"]) == ("autograd", STEPS, True), answer
    else:
        assert not answer["complete"] and answer["holders"] == [], answer
        assert any("pack and unpack" in note for note in answer["not_looked_at"]), answer
