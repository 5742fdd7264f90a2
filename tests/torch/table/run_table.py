"""Runs the live table and writes the results.

    $(tests/fakegpu/setup 2.11.0) python tests/torch/table/run_table.py --out FOLDER [--quick] [JOB ...]

Each job becomes FOLDER/JOB.json, the table FOLDER/table.md and FOLDER/table.json. `--again` judges the records of a
folder without running anything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import table
from running import Place, recorded
from truth import BY_NAME, JOBS, MORE, Truth

# The whole table: as long as an answer after 30 s needs. The quick one compresses the same steps.
SECONDS, ASKED_AFTER = 38.0, 30.0
QUICK_SECONDS, QUICK_ASKED_AFTER = 10.0, 8.0


def run(
    truths: list[Truth],
    memctl: str,
    out: pathlib.Path,
    *,
    quick: bool,
    at_once: int,
    agent: pathlib.Path | None = None,
) -> list[table.Row]:
    """Runs jobs, several at a time, writes their records, and judges them."""
    out.mkdir(parents=True, exist_ok=True)
    seconds, asked_after = (QUICK_SECONDS, QUICK_ASKED_AFTER) if quick else (SECONDS, ASKED_AFTER)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="memctl-table."))
        place = stack.enter_context(Place(memctl, pathlib.Path(scratch), agent).serving())

        def one(truth: Truth) -> None:
            record = recorded(place, truth, seconds, asked_after)
            (out / f"{truth.name}.json").write_text(json.dumps(record))
            print(f"{truth.name}: {record['counters'][-1:]}", file=sys.stderr, flush=True)

        list(stack.enter_context(ThreadPoolExecutor(at_once)).map(one, truths))
    return table.read(out, truths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", metavar="JOB", nargs="*", help="only these jobs")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder for records and table")
    parser.add_argument("--memctl", default=shutil.which("memctl"), help="the command (the one on PATH)")
    parser.add_argument("--agent", type=pathlib.Path, help="a folder with memctl_agent, where it is not installed")
    parser.add_argument("--quick", action="store_true", help="the ten of the default run, in ten seconds each")
    parser.add_argument("--more", action="store_true", help="those beside the forty")
    parser.add_argument("--at-once", type=int, default=4, help="jobs that run at the same time (4)")
    parser.add_argument("--again", action="store_true", help="judge the records that are there")
    arguments = parser.parse_args()
    if arguments.again:
        rows = table.read(
            arguments.out, [one for one in BY_NAME.values() if (arguments.out / f"{one.name}.json").exists()]
        )
    else:
        if not arguments.memctl:
            parser.error("there is no memctl on PATH: name it with --memctl")
        usual = MORE if arguments.more else [one for one in JOBS if one.quick or not arguments.quick]
        wanted = [BY_NAME[name] for name in arguments.jobs] or list(usual)
        rows = run(
            wanted,
            arguments.memctl,
            arguments.out,
            quick=arguments.quick,
            at_once=arguments.at_once,
            agent=arguments.agent and arguments.agent.resolve(),
        )
    table.write(arguments.out, rows)
    print(table.markdown(rows), end="")


if __name__ == "__main__":
    main()
