"""The table: each job's truth, verdicts and counters side by side, as Markdown and JSON, and the number right."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from assess import MIB, Holder, Moment, disagreements, moment, proved
from truth import BY_NAME, Course, HeldBy, Truth

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A job in the table."""

    truth: Truth
    unproved: Optional[str]
    live: Optional[Moment]
    end: Moment
    disagreements: list[str]

    @property
    def moments(self) -> list[Moment]:
        """The verdicts while the job ran and at its end."""
        return [one for one in (self.live, self.end) if one is not None]

    @property
    def grown_and_called_steady(self) -> bool:
        """The worst mistake: memory grows, and the verdict reports no problem."""
        calm = ("steady", "levelled_off", "released") if self.truth.course is Course.LEAK else ("steady",)
        return any(one.kind in calm and one.wrong is not None for one in self.moments)

    @property
    def bounded_and_called_leak(self) -> bool:
        """The other mistake: bounded memory is called a leak."""
        return any((one.wrong or "").startswith("called a leak") for one in self.moments)


def row(record: Record) -> Row:
    """A record, judged."""
    truth = BY_NAME[record["name"]]
    live, end = record["live"], record["end"]
    return Row(
        truth,
        f"exit code {record['code']}" if record["code"] != 0 else proved(truth, record),
        moment(truth, record, live["query"].get("answer") or {}, live["at"]) if live else None,
        moment(truth, record, end["query"].get("answer") or {}, end["at"]),
        disagreements(record),
    )


def read(folder: pathlib.Path, truths: Sequence[Truth]) -> list[Row]:
    """The records of these jobs."""
    return [row(json.loads((folder / f"{truth.name}.json").read_text())) for truth in truths]


def totals(rows: list[Row]) -> dict[str, int]:
    """Counts over all jobs: right and wrong verdicts, causes, holders, and commands that agree."""
    leaks = [one for one in rows if one.truth.course is Course.LEAK]
    return {
        "jobs": len(rows),
        "label proved by PyTorch's counters": sum(one.unproved is None for one in rows),
        "asked while it ran": sum(one.live is not None for one in rows),
        "right while it ran": sum(one.live is not None and one.live.wrong is None for one in rows),
        "right at the end": sum(one.end.wrong is None for one in rows),
        "grows, and is called steady": sum(one.grown_and_called_steady for one in rows),
        "is bounded, and is called a leak": sum(one.bounded_and_called_leak for one in rows),
        "leaks": len(leaks),
        "leaks of a known cause at the end": sum(one.end.cause == "known" for one in leaks),
        "holders named right at the end": sum(one.end.holder_is is Holder.RIGHT for one in leaks),
        "holders named wrong": sum(one.end.holder_is is Holder.WRONG for one in rows),
        "held by C++ or the host alone": sum(one.truth.held_by is not HeldBy.PYTHON for one in leaks),
        "commands agree": sum(not one.disagreements for one in rows),
    }


def markdown(rows: list[Row]) -> str:
    """The table as Markdown."""
    lines = [f"- {name}: {count}" for name, count in totals(rows).items()]
    lines += ["", "| job | truth | while it ran | at the end | line | holder | grown, of PyTorch's | commands |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for one in rows:
        end = one.end
        epochs = "" if one.truth.epochs else ", no epochs"
        cells = [
            one.truth.name,
            f"{one.truth.course.value}{epochs}" + (f" (unproved: {one.unproved})" if one.unproved else ""),
            _verdict(one.live),
            _verdict(end),
            f"{_mark(end.site_right)}{end.site or ''}",
            f"{end.holder_is.value}: {end.holder or ''}",
            "" if end.ratio is None or end.grown is None else f"{end.grown / MIB:.0f} MiB, {end.ratio:.1%}",
            "; ".join(one.disagreements) or "agree",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _mark(right: Optional[bool]) -> str:
    return "" if right is None else "✓ " if right else "✗ "


def _verdict(said: Optional[Moment]) -> str:
    if said is None:
        return "not asked"
    kind = f"{said.kind} ({said.cause})" if said.cause else said.kind
    return f"✓ {kind}" if said.wrong is None else f"✗ {kind}: {said.wrong}"


def write(folder: pathlib.Path, rows: list[Row]) -> None:
    """`table.md` and `table.json` beside the records."""
    (folder / "table.md").write_text(markdown(rows))
    whole = {"totals": totals(rows), "rows": [dataclasses.asdict(one) for one in rows]}
    (folder / "table.json").write_text(json.dumps(whole, indent=1, default=lambda one: one.value) + "\n")
