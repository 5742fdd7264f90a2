"""Reads exports of `memctl` with the tools that they are for, and compares every total with memctl's own answers.

    readers.py MEMCTL

Go's pprof, Perfetto's published messages, Arrow and DuckDB read recordings that are bundled with memctl. The examples
of docs/integrations.md run as they stand there. Exits with 1 and the reason if something differs.
"""

from __future__ import annotations

import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import duckdb
import duckdb_extension_ducklake
import pyarrow.parquet
from google.protobuf import unknown_fields
from google.protobuf.message import Message
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, Trace, TrackEvent

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RECORDINGS = ROOT / "tests" / "data" / "recordings"
JOBS = ("gpt_clean", "oom_by_fragmentation", "gpt_val_graph_leak")


class Store:
    """A store with the recordings, and a folder for exports."""

    def __init__(self, memctl: str, folder: pathlib.Path) -> None:
        self.memctl, self.folder = memctl, folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMCTL_")}
        # Each command opens the store itself; `memctl` in an example is the built program.
        path = f"{pathlib.Path(memctl).parent}:{kept['PATH']}"
        self.env = {**kept, "MEMCTL_SERVICE": "off", "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder), "PATH": path}
        self.env["PPROF_TMPDIR"] = str(folder)
        self.env.pop("XDG_DATA_HOME", None)

    def run(self, *words: object) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(
            [str(word) for word in words], env=self.env, cwd=self.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
        return done.stdout

    def answer(self, verb: str, job: str, *more: str) -> dict:
        """The answer of a command as data."""
        return json.loads(self.run(self.memctl, verb, job, "-q", "-o", "json", *more))

    def export(self, job: str, form: str, *more: str) -> pathlib.Path:
        """An export in a file or folder of its own."""
        file = self.folder / f"{job}.{form}"
        self.run(self.memctl, "export", job, "-q", "--format", form, "-f", file, *more)
        return file


def profile(store: Store, job: str) -> None:
    """Go's pprof finds the bytes and blocks of the ledger, also of one rank and one class."""
    file = store.export(job, "pprof")
    ranks = store.answer("ledger", job, "--end", "--blocks")["ranks"]

    def total(index: str, *more: str) -> int:
        shown = store.run("go", "tool", "pprof", f"-sample_index={index}", "-unit=B", "-raw", *more, file)
        rows = re.findall(r"^ +(\d+) +(\d+): ", shown, re.M)
        return sum(int(row[index == "inuse_space"]) for row in rows)

    assert total("inuse_space") == sum(rank["allocated_bytes"] for rank in ranks), job
    assert total("inuse_objects") == sum(len(rank["blocks"]) for rank in ranks), job
    assert total("inuse_space", "-tagfocus=rank=0") == ranks[0]["allocated_bytes"], job
    tags = store.run("go", "tool", "pprof", "-tags", "-unit=B", file)
    for tag in ("job", "rank", "device", "class", "epoch"):
        assert f" {tag}: Total " in tags, tags
    print(f"  pprof: {job}, {total('inuse_space'):,} bytes")


def known(message: Message) -> Iterator[str]:
    """Names of messages with a field that the published file does not have."""
    if len(unknown_fields.UnknownFieldSet(message)):
        yield message.DESCRIPTOR.name
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if isinstance(value, (list, tuple)) or hasattr(value, "append") else [value]:
                yield from known(inner)


def trace(store: Store, job: str) -> None:
    """Perfetto's messages have the peaks of the report; slices nest; every packet has a track."""
    packets = Trace.FromString(store.export(job, "perfetto").read_bytes()).packet
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in packets
        if packet.HasField("track_descriptor")
    }
    values: dict[int, list[int]] = {}
    open_slices: dict[int, int] = {}
    last: dict[int, int] = {}
    for packet in packets[:2000]:
        assert not list(known(packet)), packet
    for packet in packets:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        track = tracks[event.track_uuid]
        assert packet.timestamp >= last.get(track.uuid, 0), packet
        last[track.uuid] = packet.timestamp
        if event.type == TrackEvent.TYPE_COUNTER:
            assert track.counter.unit == CounterDescriptor.UNIT_SIZE_BYTES, track
            values.setdefault(track.uuid, []).append(event.counter_value)
        elif event.type in (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END):
            change = 1 if event.type == TrackEvent.TYPE_SLICE_BEGIN else -1
            open_slices[track.uuid] = open_slices.get(track.uuid, 0) + change
            assert open_slices[track.uuid] >= 0, track
        else:
            assert event.type == TrackEvent.TYPE_INSTANT and event.name, event
    assert not any(open_slices.values()), open_slices
    peaks = {}
    for uuid, levels in values.items():
        process = tracks[tracks[uuid].parent_uuid].process.process_name
        peaks[process.split(" (")[0], tracks[uuid].name.split(" ")[1]] = max(levels)
    for rank in store.answer("query", job)["ranks"]:
        name = f"rank {rank['rank']}"
        assert peaks[name, "allocated"] == rank["peak_allocated_bytes"], (job, name)
        assert peaks[name, "reserved"] == rank["peak_reserved_bytes"], (job, name)
    print(f"  perfetto: {job}, {len(packets):,} packets, {len(tracks)} tracks")


def tables(store: Store, job: str) -> None:
    """Arrow and DuckDB read the same rows, with the totals of the ledger, the report and the events in CSV."""
    folder = store.export(job, "parquet", "--events")
    names = ("sites", "epochs", "findings", "counters", "events")
    arrow = {name: pyarrow.parquet.read_table(folder / f"{name}.parquet").to_pylist() for name in names}
    for name in names:
        ((count,),) = duckdb.sql(f"SELECT count(*) FROM '{folder}/{name}.parquet'").fetchall()
        assert count == len(arrow[name]), (job, name)
    ledger, report = store.answer("ledger", job, "--end", "--blocks"), store.answer("query", job)
    sums = f"SELECT rank, sum(live_bytes), sum(live_blocks) FROM '{folder}/sites.parquet' GROUP BY rank"
    live = {rank: (size, blocks) for rank, size, blocks in duckdb.sql(sums).fetchall()}
    expected = {rank["rank"]: (rank["allocated_bytes"], len(rank["blocks"])) for rank in ledger["ranks"]}
    assert live == expected, (job, live, expected)
    ends = [
        (rank["rank"], end["epoch"], end["allocated_bytes"]) for rank in report["ranks"] for end in rank["epoch_ends"]
    ]
    assert [(row["rank"], row["epoch"], row["allocated_bytes"]) for row in arrow["epochs"]] == ends, job
    findings = [(finding["id"], finding["title"], finding["bytes_per_epoch"]) for finding in report["findings"]]
    assert [(row["id"], row["title"], row["bytes_per_epoch"]) for row in arrow["findings"]] == findings, job
    peaks = f"SELECT rank, max(allocated_bytes), max(reserved_bytes) FROM '{folder}/counters.parquet' GROUP BY rank"
    highest = {rank["rank"]: (rank["peak_allocated_bytes"], rank["peak_reserved_bytes"]) for rank in report["ranks"]}
    assert {rank: (*most,) for rank, *most in duckdb.sql(peaks).fetchall()} == highest, job
    text = csv.DictReader(store.run(store.memctl, "export", job, "-q", "--format", "csv").splitlines())
    for row, line in zip(arrow["events"], text, strict=True):
        found = (row["rank"], row["action"], row["size_bytes"], row["function"] or "", row["line"] or "")
        assert [str(value) for value in found] == [
            line[key] for key in ("rank", "action", "size_bytes", "function", "line")
        ]
        assert row["address"] == (int(line["address"], 16) if line["address"] else None), (row, line)
    print(f"  parquet: {job}, {len(arrow['events']):,} events, {len(arrow['counters']):,} levels")


def examples(store: Store) -> None:
    """The section's examples, in their order, in one folder."""
    section = (ROOT / "docs" / "integrations.md").read_text().split("\n## Profilers and tables\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```(bash|python)\n(.*?)```", section, re.S)
    assert len(blocks) >= 3, section
    store.run(store.memctl, "import", "-q", "--job", "val-leak", RECORDINGS / JOBS[-1])
    # `INSTALL ducklake` finds the extension of the wheel where it would put the one that it downloads.
    (extension,) = (pathlib.Path(duckdb_extension_ducklake.__file__).parent / "extensions").glob("*/*.duckdb_extension")
    ((platform,),) = duckdb.sql("PRAGMA platform").fetchall()
    installed = store.folder / ".duckdb" / "extensions" / f"v{duckdb.__version__}" / platform
    installed.mkdir(parents=True)
    shutil.copy(extension, installed)
    for language, text in blocks:
        shown = store.run("bash", "-euc", text) if language == "bash" else store.run(sys.executable, "-c", text)
        assert shown.strip() or "-f " in text, text
    print(f"  {len(blocks)} examples of docs/integrations.md")


def main() -> None:
    """Every reader on every recording, then the examples."""
    with tempfile.TemporaryDirectory(prefix="readers-") as folder:
        store = Store(sys.argv[1], pathlib.Path(folder))
        for job in JOBS:
            store.run(store.memctl, "import", "-q", "--job", job, RECORDINGS / job)
        for job in JOBS:
            profile(store, job)
            trace(store, job)
            tables(store, job)
        examples(store)


if __name__ == "__main__":
    main()
