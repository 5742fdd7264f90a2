"""Compares memctl's statements about a job with the truth: works on records, without processes or a clock.

The course of a job's memory up to a moment is taken from PyTorch's counters, not from the plan: on a busy machine a
job may lag behind its plan.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass
from typing import Any, Optional

from truth import Course, HeldBy, Truth

MIB = 1 << 20
# Setting up is over after this share of a job's steps.
WARM = 0.05
# A course that was flat for at least STOPPED of the time has stopped; at most MOVES: it moves. Between, both are right.
STOPPED, MOVES = 0.40, 0.25
LEAK_KINDS = ("leak", "eval_graph", "graph_kept", "hidden_chain")
Record = dict[str, Any]


class Holder(enum.Enum):
    """How well the holder was named."""

    RIGHT = "right"
    WRONG = "wrong"
    OPEN = "open"


@dataclass(frozen=True)
class Moment:
    """A verdict at one moment and the truth."""

    kind: str
    cause: Optional[str]
    sentence: str
    wrong: Optional[str]
    site: Optional[str]
    site_right: Optional[bool]
    holder: Optional[str]
    holder_is: Holder
    grown: Optional[int]
    counted: Optional[int]

    @property
    def ratio(self) -> Optional[float]:
        """The growth that memctl reports, divided by the growth that PyTorch counted in the same time."""
        if self.grown is None or not self.counted:
            return None
        return self.grown / self.counted


class Series:
    """The counters of one process of a job, after its warm-up."""

    def __init__(self, record: Record, truth: Truth) -> None:
        field = "host" if truth.held_by is HeldBy.HOST else "allocated"
        own = [one for one in record["counters"] if one["process"] == truth.process and one["done"] >= WARM]
        self.times: list[float] = [one["at"] for one in own]
        self.levels: list[int] = [one[field] for one in own]
        self.done: list[float] = [one["done"] for one in own]

    def until(self, at: float) -> Series:
        """The counters up to a moment."""
        part = object.__new__(Series)
        end = bisect.bisect_right(self.times, at)
        part.times, part.levels, part.done = self.times[:end], self.levels[:end], self.done[:end]
        return part

    def at(self, when: float) -> Optional[int]:
        """The level at a moment; before the first point, the first level."""
        if not self.times:
            return None
        return self.levels[max(0, bisect.bisect_right(self.times, when) - 1)]

    @property
    def grown(self) -> int:
        """The change from the first level to the last."""
        return self.levels[-1] - self.levels[0] if self.levels else 0

    def full_at(self) -> int:
        """The first point with nearly the final level."""
        wanted = self.levels[0] + 0.98 * self.grown
        return next(number for number, level in enumerate(self.levels) if level >= wanted)

    def flat_share(self) -> float:
        """The share of the time during which it has been flat."""
        if len(self.times) < 2:
            return 0.0
        return (self.times[-1] - self.times[self.full_at()]) / (self.times[-1] - self.times[0])


def proved(truth: Truth, record: Record) -> Optional[str]:
    """The reasons why PyTorch's counters disagree with the label; empty if they agree."""
    series = Series(record, truth)
    if len(series.levels) < 50:
        return f"only {len(series.levels)} counters"
    if truth.course is Course.RELEASED:
        return _released(series)
    if truth.course is Course.STEADY:
        third = len(series.levels) // 3
        stays = (min(series.levels[-third:]) - min(series.levels[:third])) / MIB
        return f"{stays:.0f} MiB stay" if stays > 2 else None
    lowest_growth = 64 if truth.course is Course.LEAK else 48
    if series.grown < lowest_growth * MIB:
        return f"only {series.grown / MIB:.0f} MiB grown"
    full = series.done[series.full_at()]
    if truth.course is Course.LEAK:
        middle = series.levels[len(series.levels) // 2] - series.levels[0]
        deepest = max(before - after for before, after in zip(series.levels, series.levels[1:]))
        if not 0.3 <= middle / series.grown <= 0.7 or full < 0.95:
            return f"it does not grow evenly to the end: half of the way {middle / series.grown:.0%}"
        return f"it falls by {deepest / MIB:.0f} MiB" if deepest > 0.1 * series.grown else None
    earliest, latest = (0.55, 1.0) if truth.course is Course.BOUNDED else (0.0, 0.5)
    return None if earliest <= full <= latest else f"it is full after {full:.0%}"


def _released(series: Series) -> Optional[str]:
    rise = max(series.levels) - min(series.levels)
    if rise < 48 * MIB:
        return f"only {rise / MIB:.0f} MiB gathered"
    middle = (max(series.levels) + min(series.levels)) / 2
    falls = sum(before > middle >= after for before, after in zip(series.levels, series.levels[1:]))
    half = len(series.levels) // 2
    rest = min(series.levels[half:]) - min(series.levels[:half])
    if falls < 5 or rest > 2 * MIB:
        return f"it is given back {falls} times, and {rest / MIB:.0f} MiB more stay"
    return None


def verdict_in(answer: Optional[Record]) -> Optional[Record]:
    """The verdict in a response, or of a job in a list."""
    found = (answer or {}).get("verdict")
    return found if isinstance(found, dict) and "sentence" in found else None


def moment(truth: Truth, record: Record, answer: Record, at: float) -> Moment:
    """A verdict beside the counters up to the same moment."""
    verdict = verdict_in(answer)
    series = Series(record, truth).until(at)
    if verdict is None:
        missing = "no verdict"
        return Moment(missing, None, "", missing, None, None, None, Holder.OPEN, None, None)
    site = verdict.get("site")
    place = f"{site['function']} ({site['file'].rsplit('/', 1)[-1]}:{site['line']})" if site else None
    grows = truth.course is Course.LEAK
    counted = None
    if verdict.get("seconds") is not None and series.times:
        end = series.times[-1]
        counted = (series.at(end) or 0) - (series.at(end - verdict["seconds"]) or 0)
    return Moment(
        verdict["kind"],
        verdict.get("cause"),
        verdict["sentence"],
        wrong(truth, verdict, answer.get("findings", []), series.flat_share()),
        place,
        in_functions(truth, site) if grows and truth.functions and site else None,
        verdict.get("holder"),
        holder_named(truth, verdict),
        verdict.get("grown_bytes"),
        counted,
    )


def wrong(truth: Truth, verdict: Record, findings: list[Record], flat: float) -> Optional[str]:
    """The errors of a verdict; empty if it is true. `flat`: the share of the time during which the course was flat."""
    kind, cause = verdict["kind"], verdict.get("cause")
    if truth.course is Course.LEAK:
        return _wrong_of_a_leak(truth, verdict)
    called = [one["title"] for one in findings if one["kind"] in LEAK_KINDS and one["severity"] != "info"]
    if called or (kind == "growing" and cause == "known"):
        return f"called a leak: {(called or [verdict['sentence']])[0]}"
    if truth.course in (Course.RELEASED, Course.STEADY):
        also = "released" if truth.course is Course.RELEASED else "levelled_off"
        return None if kind in (also, "steady") else f"{kind}, and nothing stays"
    true = set()
    if flat < STOPPED:
        true |= {"filling", "growing"}
    if flat > MOVES:
        true |= {"levelled_off", "steady"}
    return None if kind in true else f"{kind}, and it has been flat for {flat:.0%} of the time"


def _wrong_of_a_leak(truth: Truth, verdict: Record) -> Optional[str]:
    if verdict["kind"] != "growing":
        return f"{verdict['kind']}, and it grows"
    if verdict.get("memory") not in (None, truth.memory):
        return f"growth of {verdict['memory']} memory, and it is that of the {truth.memory}"
    site = verdict.get("site")
    if truth.functions and not in_functions(truth, site):
        return f"allocated in {site['function'] if site else 'an unknown place'}"
    return None


def in_functions(truth: Truth, site: Optional[Record]) -> bool:
    """Whether a site is in one of the functions that are a right answer, or in a comprehension or function in it."""
    return site is not None and not set(truth.functions).isdisjoint(site["function"].split("."))


def holder_named(truth: Truth, verdict: Record) -> Holder:
    """Whether it names the holder of the memory."""
    said = verdict.get("holder")
    if not said:
        return Holder.OPEN
    if not truth.holder:
        return Holder.RIGHT
    named = any(all(word.lower() in said.lower() for word in words) for words in truth.holder)
    return Holder.RIGHT if named else Holder.WRONG


def disagreements(record: Record) -> list[str]:
    """The contradictions between commands, exit codes, the page and the alerts at the job's end."""
    end, found = record["end"], []
    verdict = verdict_in(end["query"].get("answer"))
    if verdict is None:
        return ["query gives no verdict"]
    others = {verb: end[verb].get("answer") for verb in ("diagnose", "leaks")}
    others |= {"jobs": end["jobs"], "the page's query": end["http"]}
    for name, answer in others.items():
        other = verdict_in(answer)
        if other is None:
            found.append(f"{name} gives no verdict")
        elif any(other[field] != verdict[field] for field in ("kind", "cause", "memory", "sentence")):
            found.append(f"{name} says {other['kind']}: {other['sentence']}")
    for verb in ("query", "diagnose", "leaks"):
        # What a page says first may be broken into lines.
        beginning = " ".join(end[f"{verb}_page"]["text"].lstrip().partition("\n\n")[0].split())
        if first_sentence(verdict) not in beginning:
            found.append(f"the page of {verb} begins `{beginning}`")
    return found + _wrong_codes(end, verdict) + _wrong_alerts(end, verdict)


def first_sentence(verdict: Record) -> str:
    """The text up to the first full stop that ends a sentence."""
    return " ".join(verdict["sentence"].split()).partition(". ")[0].rstrip(".")


def _wrong_codes(end: Record, verdict: Record) -> list[str]:
    found = []
    # Both also end with 1 if growth could not be judged.
    is_open = verdict["kind"] == "not_enough_data"
    grows = is_open or verdict["kind"] in ("growing", "out_of_memory")
    if end["fail_on_growing"] != int(grows):
        found.append(f"--fail-on growing ends with {end['fail_on_growing']}, and it is {verdict['kind']}")
    hurts = is_open or any(one["severity"] != "info" for one in end["query"]["answer"].get("findings", []))
    if end["fail_on_warning"] != int(hurts):
        found.append(f"--fail-on warning ends with {end['fail_on_warning']}, and a warning is there: {hurts}")
    [condition] = end["assert"].get("answer", {}).get("conditions", [{"verdict": "no answer"}])
    if verdict["kind"] == "growing" and verdict["memory"] == "device":
        wanted = ["does_not_hold"] if verdict["cause"] == "known" else ["inconclusive"]
    elif verdict["kind"] == "not_enough_data":
        wanted = ["inconclusive"]
    else:
        wanted = ["holds"]
    if condition["verdict"] not in wanted and verdict["memory"] in (None, "device"):
        found.append(f"assert no-leak: {condition['verdict']}, and it is {verdict['kind']} ({verdict['cause']})")
    if (end["assert"]["code"] == 0) != (condition["verdict"] == "holds"):
        found.append(f"assert no-leak ends with {end['assert']['code']}, and says {condition['verdict']}")
    return found


def _wrong_alerts(end: Record, verdict: Record) -> list[str]:
    firing = {one["rule"] for one in end["alerts"] if one["state"] != "resolved"}
    known = verdict["kind"] == "growing" and verdict["cause"] == "known" and verdict["memory"] == "device"
    # Growth that nothing bounded is likely to explain raises an alert, also while its cause is open.
    warned = any(one["severity"] != "info" for one in end["query"]["answer"].get("findings", []))
    may_fire = known or (verdict["kind"] == "growing" and verdict["memory"] == "device" and warned)
    fires = "MemoryLeak" in firing
    if (known and not fires) or (fires and not may_fire):
        return [f"alerts {sorted(firing)}, and it is {verdict['kind']} ({verdict['cause']})"]
    if verdict["kind"] not in ("growing", "out_of_memory") and firing & {"MemoryGrowth", "OutOfMemoryAhead"}:
        return [f"alerts {sorted(firing)}, and it is {verdict['kind']}"]
    return []
