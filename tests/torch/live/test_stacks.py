"""Stacks: memctl's stack of an allocation is that of PyTorch's own recorder, and freed code objects are never named.

The hook distinguishes frames by the address of their instruction (CPython 3.12 and later) or by code object. Both must
give the frames that PyTorch holds on to, even if an address was used by other code before.
"""

from __future__ import annotations

import pathlib
import pickle
import sys
from typing import Any

from conftest import Memctl, Plain, both, own_trace, place_of, same

HISTORY = """
import pickle, sys
import torch
import small

torch.cuda.memory._record_memory_history(context="all", stacks="python", max_entries=1_000_000)
training = small.Training()
outer = lambda deep: training.step() if deep == 0 else outer(deep - 1)
for number in range(30):
    training.steps(1); training.step()
    outer(number % 3)
    [training.leak(512) for _ in range(number % 2)]
with open(sys.argv[1], "wb") as file:
    pickle.dump(torch.cuda.memory._snapshot()["device_traces"][0], file)
small.tell("status", small.status())
training.report()
"""

Frames = list[tuple[str, int]]


def frames_of(entry: dict[str, Any]) -> Frames:
    """The frames, innermost first, without memctl's own, which it never shows."""
    places = [(frame["filename"], frame["line"]) for frame in entry.get("frames", [])]
    return [(file, line) for file, line in places if "/memctl_agent/" not in file]


def test_stacks_are_pytorchs_own(memctl: Memctl, script: Any, plain: Plain, tmp_path: pathlib.Path) -> None:
    path, own = script(HISTORY), tmp_path / "own.pickle"
    run, expected = both(
        lambda: memctl.record("history", sys.executable, str(path), str(own)),
        lambda: plain(memctl, path, str(tmp_path / "plain.pickle")),
    )
    same(expected, run)
    status = run.reported("status")
    assert status["level"] == "full" and status["stacks_lost"] == 0, status
    exported = tmp_path / "exported.pickle"
    done = memctl("export", "--job", "history", "--rank", "0", "--format", "memory-viz", "-f", str(exported))
    assert done.code == 0, done
    theirs = [entry for entry in pickle.loads(own.read_bytes()) if entry["action"] != "snapshot"]
    [ours] = [trace for trace in pickle.loads(exported.read_bytes())["device_traces"] if trace]
    ours = [entry for entry in ours if entry["action"] in {other["action"] for other in theirs}]
    start = place_of(own_trace(theirs), own_trace(ours))
    assert start is not None, (len(theirs), len(ours))
    compared: set[str] = set()
    for mine, other in zip(ours[start:], theirs):
        # In PyTorch's trace, backward allocations have no Python frames; memctl gives them the forward call's.
        if other["action"] == "alloc" and other["frames"]:
            assert frames_of(mine) == frames_of(other), (mine, other)
            compared.add(repr(frames_of(mine)))
    # Two calls on one line, recursion of three depths, a comprehension: more stacks than lines.
    assert len(compared) > 30, len(compared)


DYING = """
import torch
import small
small.attach_if_wanted()
training = small.Training()
training.steps(3)
seen, met_again = set(), 0
for number in range(300):
    # What exec makes dies before the next is made, which then lies where it lay, its instructions too.
    source = f"def made_{number}(): return torch.empty({512 * (number + 1)}, dtype=torch.uint8, device='cuda')"
    room = {"torch": torch}
    exec(compile("\\n" * number + source, "made.py", "exec"), room)
    function = room.pop(f"made_{number}")
    met_again += id(function.__code__) in seen
    seen.add(id(function.__code__))
    training.kept.append(function())
    del function, room
small.tell("met-again", met_again)
small.tell("status", small.status())
training.report()
"""


def test_code_that_died_is_not_named(memctl: Memctl, script: Any, plain: Plain) -> None:
    path = script(DYING)
    run, expected = both(
        lambda: memctl.record("dying", sys.executable, str(path)),
        lambda: plain(memctl, path),
    )
    same(expected, run)
    # Addresses were reused: most of the functions were at the address of an earlier one.
    assert run.reported("met-again") > 150, run
    assert run.reported("status")["stacks_lost"] == 0, run
    [rank] = memctl.answer("sites", "--job", "dying", "--end")["ranks"]
    made = {}
    for site in rank["sites"]:
        inner = site["stack"][0] if site["stack"] else {"function": "", "line": 0}
        if inner["function"].startswith("made_"):
            made[inner["function"]] = (inner["line"], site["live_blocks"], site["live_bytes"])
    assert made == {f"made_{number}": (number + 1, 1, 512 * (number + 1)) for number in range(300)}
