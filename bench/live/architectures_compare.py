"""What memctl says of the files that architectures.py wrote: `architectures_compare.py MEMCTL FOLDER [NAME ...]`.

Each file is imported into a store of its own and asked for its steps and findings: how often the steps found are the
true number, said not to be found, or wrong, and whether anything is warned of. Ends with 1 where anything is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any


def asked(memctl: str, file: Path) -> dict[str, Any]:
    """The report on one file."""
    with tempfile.TemporaryDirectory() as store:
        place = ["--data-dir", store, "--job", "job"]
        subprocess.run([memctl, "import", "-q", *place, str(file)], check=True, capture_output=True)
        # Its exit code says whether something was found.
        ended = subprocess.run([memctl, "query", "-o", "json", *place], check=False, capture_output=True)
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def verdict(label: dict[str, Any], report: dict[str, Any]) -> str:
    """How the steps that were found compare with those that there were."""
    if report["boundaries"]["steps"] != "found":
        return "not found" if report["boundaries"]["windows"] == 0 else "windows"
    found = report["ranks"][0]["steps"]
    return "right" if found in (label["steps"], label["calls"], label["predictions"]) else f"wrong: {found}"


def main() -> None:
    """Compares all files, or those whose names begin like one of the names."""
    memctl, folder, *names = sys.argv[1:]
    counts: Counter[tuple[str, str]] = Counter()
    wrong = 0
    for file in sorted(Path(folder).glob("*.pickle")):
        if names and not file.name.startswith(tuple(names)):
            continue
        label = json.loads(file.with_suffix(".json").read_text())
        report = asked(memctl, file)
        steps = verdict(label, report)
        warned = [it["kind"] for it in report["findings"] if it["severity"] != "info"]
        counts[label["kind"], steps] += 1
        if warned or steps.startswith(("wrong", "windows")):
            wrong += 1
            print(file.stem, steps, report["boundaries"]["found_by"], *warned, flush=True)
    for (kind, steps), count in sorted(counts.items()):
        print(f"{kind:12} {steps:12} {count}")
    print(f"{sum(counts.values())} files, {wrong} wrong or warned of")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
