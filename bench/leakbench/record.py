#!/usr/bin/env python3
"""Records the trainings of `train/` as leakbench's base streams: genuine torch on the fake GPU, under `memctl run`.

    record.py RUN OUT_DIR [NAME ...]        RUN is what `tests/fakegpu/setup 2.11.0` prints, with memctl-agent installed

Each training becomes a snapshot for PyTorch's viewer (`memctl export --format memory-viz`), packed by zstd. Two things
are changed in it: file names lose the folders in front of `lib/python3.X` and `train`, and all times are shifted, so
that the first is the begin of 2026. Fails when a training fails or loses events.
"""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
GROUPS = ("text", "vision", "other")
BEGIN_US = 1_767_225_600_000_000
LIBRARY = re.compile(r"^.*?/(?=lib/python3\.\d+/)")


def names() -> dict[str, str]:
    """The trainings, each with its file."""
    listed = re.compile(r"^TRAINED.*?= \[(.*?)\]", re.MULTILINE | re.DOTALL)
    found = {}
    for group in GROUPS:
        match = listed.search((HERE / "train" / f"{group}.py").read_text())
        assert match, f"train/{group}.py lists no trainings"
        found.update(dict.fromkeys(re.findall(r"\w+", match.group(1)), group))
    return found


def tidy(name: str) -> str:
    """A file name without the folders of the machine that recorded it."""
    if name.startswith("<"):
        return name
    if "/train/" in name and name.rsplit("/", 1)[-1][:-3] in GROUPS:
        return "/home/user/train/" + name.rsplit("/", 1)[-1]
    return LIBRARY.sub("/usr/", name)


def rewrite(node: Any, shift_us: int, seen: set[int]) -> None:
    """Changes file names and times everywhere in the snapshot, in place."""
    if id(node) in seen or not isinstance(node, (dict, list)):
        return
    seen.add(id(node))
    if isinstance(node, dict):
        if isinstance(node.get("filename"), str):
            node["filename"] = tidy(node["filename"])
        if isinstance(node.get("time_us"), int):
            node["time_us"] = BEGIN_US + node["time_us"] - shift_us
    for child in node.values() if isinstance(node, dict) else node:
        rewrite(child, shift_us, seen)


def shared(node: Any, same: dict[Any, Any]) -> Any:
    """Equal frame lists become one object, so that the pickle stores each once."""
    for trace in node["device_traces"]:
        for event in trace:
            frames = event.get("frames")
            if frames is not None:
                key = tuple((f["filename"], f["line"], f["name"]) for f in frames)
                event["frames"] = same.setdefault(key, frames)
    return node


def first_time(snapshot: dict[str, Any]) -> int:
    events = [event["time_us"] for trace in snapshot["device_traces"] for event in trace[:1]]
    return min(events + [mark["time_us"] for mark in snapshot.get("external_annotations", [])])


def call(*command: str | os.PathLike[str], **variables: str) -> str:
    done = subprocess.run(
        [os.fspath(word) for word in command], env={**os.environ, **variables}, text=True, stdout=subprocess.PIPE
    )
    if done.returncode:
        raise SystemExit(f"record: {' '.join(map(str, command))} ended with {done.returncode}")
    return done.stdout


def record(run: str, name: str, group: str, out: pathlib.Path, work: pathlib.Path) -> None:
    train = work / "train"
    if not train.exists():
        shutil.copytree(HERE / "train", train)
    store = ("--data-dir", work / "store")
    call(run, "memctl", "run", "-q", *store, "--job", name, "--", "python", train / f"{group}.py", name)
    job = json.loads(call(run, "memctl", "query", "-q", *store, "--job", name, "-o", "json"))
    exported = work / f"{name}.pickle"
    call(run, "memctl", "export", "-q", *store, "--job", name, "--rank", "0", "--format", "memory-viz", "-f", exported)
    with exported.open("rb") as file:
        snapshot = pickle.load(file)
    rewrite(snapshot, first_time(snapshot), set())
    with exported.open("wb") as file:
        pickle.dump(shared(snapshot, {}), file, protocol=4)
    packed = out / f"{name}.pickle.zst"
    call("zstd", "-q", "-f", "-22", "--ultra", "--long=27", exported, "-o", packed)
    events = sum(map(len, snapshot["device_traces"]))
    exported.unlink()
    if not job["completeness"]["exact"] or job["completeness"]["events_stored"] != events:
        raise SystemExit(f"record: {name} lost events: {job['completeness']}, {events} exported")
    rank = job["ranks"][0]
    course = f"{rank['epochs']} epochs, {rank['steps']} steps"
    print(f"{name}: {events} events, {course}, {packed.stat().st_size} bytes", flush=True)


def main() -> None:
    run, out = sys.argv[1], pathlib.Path(sys.argv[2])
    asked = sys.argv[3:] or list(names())
    with tempfile.TemporaryDirectory() as work:
        for name in asked:
            record(run, name, names()[name], out, pathlib.Path(work))


if __name__ == "__main__":
    main()
