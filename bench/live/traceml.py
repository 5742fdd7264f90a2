#!/usr/bin/env python3
"""The verdicts of memctl, TraceML and stormlog on the programs of `leak_cases.py`, as a Markdown table.

    traceml.py MEMCTL_RUN RIVALS_RUN [--memctl COMMAND] [--json FILE] [--only NAME ...] [--tools TOOL ...]

The first two are what `tests/fakegpu/setup 2.11.0` prints: one environment with memctl-agent installed, one, made under
another MEMCTL_CACHE, `--with traceml-ai==0.5.0 stormlog==0.4.3`. Each case runs once under each tool. memctl's verdict
is its gravest finding of a leak's kind or of private pools; TraceML's is the diagnosis of its step memory, from
`final_summary.json`; stormlog's is the gravest of its analyzer's pattern `memory_leak`, its insight of a memory growth
trend, and what `stormlog query issues` lists. A severity of info, or an insight, is a suspicion, anything above an
alarm. Of stormlog's issues only those count that speak of growth: one that finds the device nearly full, or a large
allocation, says nothing about a leak. Fails when a run fails or takes longer than LIMIT_S.

Results are written to FILE after each case. Results that FILE already has are not computed again, so an interrupted run
can be continued, and tools may be run one after the other (a missing cell is a dash).
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
# TraceML's names for growing memory; all other diagnoses of step memory are about something else.
GROWS = re.compile(r"CREEP|RISING|GROW|LEAK")
# memctl's kinds of leaks; `memctl leaks` lists other growth, too.
LEAKS = ("leak", "eval_graph", "graph_kept", "hidden_chain", "private_pools")
TOOLS = ("memctl", "traceml", "stormlog")
# Seconds that a command may take: the longest training runs for one of them on an idle machine.
LIMIT_S = 600
# The meaning of a verdict, by whether the training leaks.
TAKEN = {
    True: {"alarm": "found", "suspicion": "suspected", "quiet": "**missed**"},
    False: {"alarm": "**false alarm**", "suspicion": "suspected", "quiet": "quiet"},
}


@dataclasses.dataclass
class Verdict:
    """A tool's verdict on a training: `alarm` (severity warning or higher), `suspicion` (lower), or `quiet`."""

    level: str
    words: str


def call(*command: str | pathlib.Path, where: pathlib.Path, rival: str = "") -> str:
    variables = {**os.environ, "MEMCTL_RIVAL": rival}
    try:
        done = subprocess.run(
            [str(word) for word in command], cwd=where, text=True, capture_output=True, env=variables, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{' '.join(map(str, command))} had not ended after {LIMIT_S} s") from None
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def by_memctl(run: str, memctl: str, name: str, work: pathlib.Path) -> Verdict:
    store = ("--data-dir", work / "store")
    job = re.sub(r"\W+", "-", name)
    call(run, "memctl", "run", "-q", *store, "--job", job, "--", "python", "leak_cases.py", name, where=work)
    command = [run, "memctl"] if memctl == "memctl" else [memctl]
    output = call(*command, "leaks", "--all", "-q", *store, "--job", job, "-o", "json", where=work)
    found: dict[str, Any] = json.loads(output)
    leaks = [finding for finding in found["findings"] if finding["kind"] in LEAKS]
    findings = [finding for finding in leaks if finding["severity"] in ("warning", "critical")]
    below = [finding for finding in leaks if finding not in findings]
    if findings:
        return Verdict("alarm", f"{findings[0]['severity']}: {findings[0]['title']}")
    return Verdict("suspicion", f"info: {below[0]['title']}") if below else Verdict("quiet", "nothing")


def by_traceml(run: str, name: str, work: pathlib.Path) -> Verdict:
    folder = re.sub(r"\W+", "-", name)
    call(run, "traceml", "run", "--mode", "summary", "--logs-dir", "logs", "--run-name", folder, "leak_cases.py",
         "--args", name, where=work, rival="traceml")  # fmt: skip
    summary = json.loads((work / "logs" / folder / "final_summary.json").read_text())["step_memory"]
    diagnosis = summary["diagnosis"]
    reason = diagnosis.get("reason") or diagnosis.get("summary") or ""
    status = str(diagnosis["status"])
    words = f"{diagnosis['severity']}: {status}. {reason}".strip()
    if not GROWS.search(f"{diagnosis['kind']} {status}".upper()):
        return Verdict("quiet", words)
    return Verdict("suspicion" if diagnosis["severity"] == "info" else "alarm", words)


def by_stormlog(run: str, name: str, work: pathlib.Path) -> Verdict:
    call(run, "python", "leak_cases.py", name, where=work, rival="stormlog")
    report = json.loads((work / "stormlog.json").read_text())
    leaks = [pattern for pattern in report["patterns"] if pattern["pattern_type"] == "memory_leak"]
    trends = [insight for insight in report["insights"] if insight["title"] == "Memory Growth Trend"]
    listed: list[dict[str, Any]] = json.loads(call(run, "stormlog", "query", "issues", "sink", "--json", where=work))
    issues = [issue for issue in listed if re.search(r"leak|growth|drift", issue["title"], re.IGNORECASE)]
    alarms = [f"{leak['severity']}: {leak['description']}" for leak in leaks if leak["severity"] != "info"]
    alarms += [f"{issue['severity']}: {issue['title']}" for issue in issues if issue["severity"] != "info"]
    if alarms:
        return Verdict("alarm", alarms[0])
    if trends:
        return Verdict("suspicion", f"impact {trends[0]['impact']}: {trends[0]['description']}")
    return Verdict("quiet", "nothing")


def cases() -> dict[str, bool]:
    """Names of the cases and whether they leak, read without importing torch."""
    text = (HERE / "leak_cases.py").read_text()
    return {name: leaks == "True" for name, leaks in re.findall(r'^    "(.+)": \(\w+, (True|False)\),$', text, re.M)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memctl_run")
    parser.add_argument("rivals_run")
    parser.add_argument("--memctl", default="memctl", help="the command that judges, if not the environment's own")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", dest="names", nargs="+", metavar="NAME")
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    asked = parser.parse_args()
    done: dict[str, Any] = {}
    if asked.json and asked.json.exists():
        done = {row["name"]: row for row in json.loads(asked.json.read_text())["cases"]}
    print("| program | leaks | memctl | | TraceML 0.5.0 | | stormlog 0.4.3 | |")
    print("|---" * 8 + "|", flush=True)
    for name, leaks in cases().items():
        if asked.names and name not in asked.names:
            continue
        row = done.setdefault(name, {"name": name, "leaks": leaks})
        ways = {
            "memctl": lambda work, name=name: by_memctl(asked.memctl_run, asked.memctl, name, work),
            "traceml": lambda work, name=name: by_traceml(asked.rivals_run, name, work),
            "stormlog": lambda work, name=name: by_stormlog(asked.rivals_run, name, work),
        }
        for tool in asked.tools:
            if tool not in row:
                with tempfile.TemporaryDirectory() as folder:
                    shutil.copy(HERE / "leak_cases.py", folder)
                    row[tool] = dataclasses.asdict(ways[tool](pathlib.Path(folder)))
                save(asked.json, done)
        cells = [name, "yes" if leaks else "no"]
        for tool in TOOLS:
            cells += [TAKEN[leaks][row[tool]["level"]], row[tool]["words"]] if tool in row else ["-", "-"]
        print(f"| {' | '.join(cells)} |", flush=True)
    for tool, count in counts(done).items():
        print(f"\n{tool}: {', '.join(f'{word} {number}' for word, number in count.items())}")


def counts(done: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The number of each verdict by tool, for leaky and for clean programs."""
    tally: dict[str, dict[str, int]] = {}
    for tool in TOOLS:
        words = [
            f"{'leaky' if row['leaks'] else 'clean'}: {TAKEN[row['leaks']][row[tool]['level']].strip('*')}"
            for row in sorted(done.values(), key=lambda row: not row["leaks"])
            if tool in row
        ]
        tally[tool] = dict(collections.Counter(words))
    return tally


def save(file: pathlib.Path | None, done: dict[str, Any]) -> None:
    if file:
        order = list(cases())
        rows = sorted(done.values(), key=lambda row: order.index(row["name"]))
        file.write_text(json.dumps({"schema": 1, "cases": rows, "counts": counts(done)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
