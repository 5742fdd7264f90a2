"""Compares memctl's results with the truth of architectures.py: `architectures_compare.py MEMCTL FOLDER [NAME ...]`.

Each file is imported into a separate store and queried for its steps, its findings and the classes of the blocks at the
peak. The script counts how often the number of steps is right, reported as not found, or wrong, and how often there is
a warning. It also measures for how many bytes of known class memctl's class is right. Ends with 1 if steps are wrong,
if windows were found in place of steps, or if a warning exists.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

# The script's names of classes that differ from the ledger's.
CLASSES = {"optimizer": "optimizer_state"}
KNOWN = ("parameters", "gradients", "optimizer", "activations", "workspace")


def asked(memctl: str, file: Path) -> tuple[dict[str, Any], dict[int, str]]:
    """The report on one file, and the classes of the blocks at its peak by address."""
    with tempfile.TemporaryDirectory() as store:
        place = ["--data-dir", store, "--job", "job"]
        subprocess.run([memctl, "import", "-q", *place, str(file)], check=True, capture_output=True)

        def answer(*words: str) -> dict[str, Any]:
            # The exit code only states whether something was found.
            ended = subprocess.run([memctl, *words, "-o", "json", *place], check=False, capture_output=True)
            answered: dict[str, Any] = json.loads(ended.stdout)
            return answered

        report, ledger = answer("query"), answer("ledger", "--peak", "--blocks")
    blocks = {block["address"]: block["class"] for block in ledger["ranks"][0]["blocks"]}
    return report, blocks


def right_bytes(label: dict[str, Any], blocks: dict[int, str]) -> tuple[int, int]:
    """Bytes at the peak whose class is right, and those whose class is known."""
    known = [block for block in label["peak"] if block["class"] in KNOWN]
    right = [it for it in known if blocks.get(it["address"]) == CLASSES.get(it["class"], it["class"])]
    return sum(it["bytes"] for it in right), sum(it["bytes"] for it in known)


def verdict(label: dict[str, Any], report: dict[str, Any]) -> str:
    """The result of comparing the found steps with the true ones."""
    if report["boundaries"]["steps"] != "found":
        return "not found" if report["boundaries"]["windows"] == 0 else "windows"
    found = report["ranks"][0]["steps"]
    return "right" if found in (label["steps"], label["calls"], label["predictions"]) else f"wrong: {found}"


def main() -> None:
    """Compares all files, or those whose names begin like one of the names."""
    memctl, folder, *names = sys.argv[1:]
    counts: Counter[tuple[str, str]] = Counter()
    wrong, right_sum, known_sum, low = 0, 0, 0, 0
    for file in sorted(Path(folder).glob("*.pickle")):
        if names and not file.name.startswith(tuple(names)):
            continue
        label = json.loads(file.with_suffix(".json").read_text())
        report, blocks = asked(memctl, file)
        steps = verdict(label, report)
        right, known = right_bytes(label, blocks)
        right_sum, known_sum = right_sum + right, known_sum + known
        if right < 0.95 * known:
            low += 1
            print(f"{file.stem}: classes of {right / known:.1%} of the bytes are right", flush=True)
        warned = [it["kind"] for it in report["findings"] if it["severity"] != "info"]
        counts[label["kind"], steps] += 1
        if warned or steps.startswith(("wrong", "windows")):
            wrong += 1
            print(file.stem, steps, report["boundaries"]["found_by"], *warned, flush=True)
    for (kind, steps), count in sorted(counts.items()):
        print(f"{kind:12} {steps:12} {count}")
    print(f"{sum(counts.values())} files, {wrong} wrong or warned of")
    print(f"classes at the peak: {right_sum / known_sum:.1%} of the bytes right; below 95 % in {low} files")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
