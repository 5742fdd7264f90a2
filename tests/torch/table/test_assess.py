"""The rules of the table on constructed records: for each rule, one record breaks it."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from typing import Any, Callable, Optional

import pytest

import assess
from assess import MIB, Holder
from running import JOBS as PROGRAMS
from truth import BY_NAME, JOBS, MORE, Course

LEAK, BOUNDED = BY_NAME["validation_outputs"], BY_NAME["recent_frames"]
LEVELS, RELEASED = BY_NAME["cameras_come"], BY_NAME["caches_of_requests"]
POINTS = 200


def counted(course: Callable[[float], float]) -> dict[str, Any]:
    """A record of 40 s whose level is this function of its share, in MiB."""
    points = [number / POINTS for number in range(POINTS + 1)]
    counters = [
        {"process": "main", "done": at, "at": 1000 + 40 * at, "allocated": round(course(at) * MIB), "host": 0}
        for at in points
    ]
    return {"counters": counters}


def even(at: float) -> float:
    return 10 + 200 * at


def full_at(share: float) -> Callable[[float], float]:
    return lambda at: 10 + 200 * min(at / share, 1)


def teeth(at: float) -> float:
    return 10 + 100 * (at * 16 % 1)


def verdict(kind: str, cause: Optional[str] = None, **more: Any) -> dict[str, Any]:
    site = {"function": "validate", "file": "training_leaks.py", "line": 44} if kind == "growing" else None
    base = {"kind": kind, "cause": cause, "memory": "device", "sentence": f"It is {kind}. More of it.", "site": site}
    return base | {"grown_bytes": None, "seconds": None, "holder": None} | more


def test_the_table_is_as_large_as_it_says() -> None:
    courses = Counter(truth.course for truth in JOBS)
    assert courses == {Course.LEAK: 20, Course.BOUNDED: 10, Course.LEVELS_OFF: 5, Course.RELEASED: 5}
    assert sum(truth.epochs for truth in JOBS) == 20 and sum(truth.quick for truth in JOBS) == 10
    assert len({truth.holder for truth in JOBS if truth.course is Course.LEAK}) == 20


@pytest.mark.parametrize("truth", [*JOBS, *MORE], ids=lambda truth: truth.name)
def test_a_job_is_in_its_program_and_names_functions_of_it(truth: Any) -> None:
    tree = ast.parse((PROGRAMS / f"{truth.program}.py").read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    shared = ast.parse((PROGRAMS / "models.py").read_text())
    functions |= {node.name for node in ast.walk(shared) if isinstance(node, ast.FunctionDef)}
    assert {truth.name, *truth.functions} <= functions


def test_labels_need_their_counters() -> None:
    assert assess.proved(LEAK, counted(even)) is None
    assert assess.proved(LEAK, counted(full_at(0.6))) is not None
    assert assess.proved(LEAK, counted(lambda at: 10 + 20 * at)) is not None
    assert assess.proved(LEAK, counted(lambda at: even(at) - 60 * (0.5 < at < 0.6))) is not None
    assert assess.proved(BOUNDED, counted(full_at(0.6))) is None
    assert assess.proved(BOUNDED, counted(full_at(0.3))) is not None
    assert assess.proved(LEVELS, counted(full_at(0.4))) is None
    assert assess.proved(LEVELS, counted(full_at(0.6))) is not None
    assert assess.proved(RELEASED, counted(teeth)) is None
    assert assess.proved(RELEASED, counted(even)) is not None
    assert assess.proved(RELEASED, counted(lambda at: teeth(at) + 20 * at)) is not None


def test_a_leak_grows_in_its_place() -> None:
    assert assess.wrong(LEAK, verdict("growing", "open"), [], 0.0) is None
    assert assess.wrong(LEAK, verdict("growing", "known"), [], 0.0) is None
    for kind in ("steady", "filling", "levelled_off", "released", "not_enough_data"):
        assert assess.wrong(LEAK, verdict(kind), [], 0.0) is not None
    inside = {"function": "Trainer.validate.<locals>.<listcomp>", "file": "a.py", "line": 1}
    assert assess.wrong(LEAK, verdict("growing", "open", site=inside), [], 0.0) is None
    elsewhere = {"function": "main", "file": "a.py", "line": 1}
    assert assess.wrong(LEAK, verdict("growing", "open", site=elsewhere), [], 0.0) is not None
    assert assess.wrong(LEAK, verdict("growing", "open", site=None), [], 0.0) is not None
    assert assess.wrong(LEAK, verdict("growing", "open", memory="host"), [], 0.0) is not None


def test_what_is_bounded_fills_and_then_is_full() -> None:
    assert assess.wrong(BOUNDED, verdict("filling"), [], 0.0) is None
    assert assess.wrong(BOUNDED, verdict("growing", "open"), [], 0.0) is None
    assert assess.wrong(BOUNDED, verdict("steady"), [], 0.0) is not None
    assert assess.wrong(BOUNDED, verdict("levelled_off"), [], 0.5) is None
    assert assess.wrong(BOUNDED, verdict("filling"), [], 0.5) is not None
    assert assess.wrong(BOUNDED, verdict("growing", "known"), [], 0.0) is not None
    warning = {"kind": "leak", "severity": "warning", "title": "it leaks"}
    assert assess.wrong(BOUNDED, verdict("filling"), [warning], 0.0) == "called a leak: it leaks"
    assert assess.wrong(BOUNDED, verdict("filling"), [warning | {"severity": "info"}], 0.0) is None
    # The flat share follows from the counters up to the moment.
    record = counted(full_at(0.6))
    early = assess.moment(BOUNDED, record, {"verdict": verdict("levelled_off")}, 1020)
    late = assess.moment(BOUNDED, record, {"verdict": verdict("levelled_off")}, 1040)
    assert early.wrong is not None and late.wrong is None


def test_what_is_given_back_does_not_grow() -> None:
    assert assess.wrong(RELEASED, verdict("released"), [], 0.0) is None
    assert assess.wrong(RELEASED, verdict("steady"), [], 0.0) is None
    assert assess.wrong(RELEASED, verdict("growing", "open"), [], 0.0) is not None


def test_what_differs_from_step_to_step_is_steady() -> None:
    steady = BY_NAME["lengths_that_differ"]
    assert assess.proved(steady, counted(lambda at: 10 + 30 * (at * 77 % 1))) is None
    assert assess.proved(steady, counted(lambda at: 10 + 20 * at)) is not None
    assert assess.wrong(steady, verdict("steady"), [], 0.0) is None
    assert assess.wrong(steady, verdict("growing", "open"), [], 0.0) is not None


def test_a_holder_is_named_by_its_words() -> None:
    named = verdict("growing", "known", holder="list `OUTPUTS` of module `__main__`, 80 tensors")
    assert assess.holder_named(LEAK, named) is Holder.RIGHT
    assert assess.holder_named(LEAK, named | {"holder": "list `other`"}) is Holder.WRONG
    assert assess.holder_named(LEAK, verdict("growing", "open")) is Holder.OPEN
    # An entry matches only with all its words; one matching entry suffices.
    two = dataclasses.replace(LEAK, holder=(("cycle", "collector"), ("`step`",)))
    assert assess.holder_named(two, named | {"holder": "a cycle: the collector is off"}) is Holder.RIGHT
    assert assess.holder_named(two, named | {"holder": "a cycle"}) is Holder.WRONG


def test_growth_is_compared_with_what_pytorch_counted_in_the_same_time() -> None:
    grown = verdict("growing", "open", grown_bytes=98 * MIB, seconds=20.0)
    said = assess.moment(LEAK, counted(even), {"verdict": grown}, 1040)
    assert said.counted == 100 * MIB and said.ratio == pytest.approx(0.98)


def agreeing(kind: str, cause: Optional[str]) -> dict[str, Any]:
    """All commands agree at the end of a job."""
    answer = {"verdict": verdict(kind, cause), "findings": []}
    grows, leaks = kind == "growing", kind == "growing" and cause == "known"
    condition = "does_not_hold" if leaks else "inconclusive" if grows else "holds"
    page = {"code": 0, "text": f"It is\n{kind}. More of it.\n\njob x\n", "said": ""}
    end: dict[str, Any] = {verb: {"code": 0, "answer": answer} for verb in ("query", "diagnose", "leaks")}
    end |= {f"{verb}_page": page for verb in ("query", "diagnose", "leaks")}
    end |= {"jobs": answer, "http": answer, "fail_on_growing": int(grows), "fail_on_warning": 0}
    end["assert"] = {"code": int(grows), "answer": {"conditions": [{"verdict": condition}]}}
    end["alerts"] = [{"rule": "MemoryLeak", "state": "firing"}] if leaks else []
    return {"end": end}


CASES = [("growing", "known"), ("growing", "open"), ("filling", None), ("steady", None)]


@pytest.mark.parametrize(("kind", "cause"), CASES)
def test_commands_that_agree(kind: str, cause: Optional[str]) -> None:
    assert assess.disagreements(agreeing(kind, cause)) == []


DIFFERENT: dict[str, Any] = {
    "diagnose": {"code": 0, "answer": {"verdict": verdict("steady")}},
    "leaks": {"code": 0, "answer": {}},
    "jobs": None,
    "http": {"verdict": verdict("growing", "open")},
    "query_page": {"code": 0, "text": "Nothing wrong was found.\n\nIt is growing.", "said": ""},
    "fail_on_growing": 0,
    "fail_on_warning": 1,
    "assert": {"code": 0, "answer": {"conditions": [{"verdict": "holds"}]}},
    "alerts": [{"rule": "MemoryLeak", "state": "resolved"}],
}


@pytest.mark.parametrize("part", DIFFERENT)
def test_one_that_differs_is_seen(part: str) -> None:
    record = agreeing("growing", "known")
    record["end"][part] = DIFFERENT[part]
    assert len(assess.disagreements(record)) == 1, assess.disagreements(record)


def test_an_alert_of_what_is_bounded_is_seen() -> None:
    record = agreeing("filling", None)
    for rule in ("MemoryLeak", "MemoryGrowth", "OutOfMemoryAhead"):
        record["end"]["alerts"] = [{"rule": rule, "state": "firing"}]
        assert len(assess.disagreements(record)) == 1
