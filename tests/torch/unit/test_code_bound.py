"""Tests of bounds that a program's own code sets for a container."""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from typing import Any, Optional

import pytest

from memctl_agent._holders import _facts

CAP = 40
RECENT: list[int] = []
EVERYTHING: list[int] = []


def keep_recent(item: int) -> None:
    RECENT.append(item)
    if len(RECENT) > CAP:
        RECENT.pop(0)


def keep_everything(item: int) -> None:
    EVERYTHING.append(item)


class Evicting:
    """Removes the oldest item when it has too many."""

    def __init__(self, cap: int) -> None:
        self.cap, self.items = cap, OrderedDict[int, int]()

    def put(self, key: int) -> None:
        self.items[key] = key
        if len(self.items) > self.cap:
            self.items.popitem(last=False)


class Ring:
    """Replaces the oldest item when it is full."""

    def __init__(self, cap: int) -> None:
        self.cap, self.items, self.at = cap, list[int](), 0

    def put(self, item: int) -> None:
        if len(self.items) < self.cap:
            self.items.append(item)
        else:
            self.items[self.at] = item
        self.at = (self.at + 1) % self.cap


class Constant:
    """Compares with a constant, which comes first, in a loop."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        self.items.append(item)
        while len(self.items) > 30:
            del self.items[0]


class OfClass:
    """The bound is an attribute of the class, and the method is inherited."""

    LIMIT = 25

    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        if len(self.items) >= self.LIMIT:
            self.items.pop(0)
        self.items.append(item)


class Inherited(OfClass):
    pass


class Unbounded:
    """Looks at its length, which bounds nothing."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        self.items.append(item)

    def sample(self) -> Optional[int]:
        return self.items[-1] if len(self.items) >= 8 else None

    def reset(self) -> None:
        self.items.clear()


class Warming:
    """Compares with a number that has no effect."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        if len(self.items) < 8:
            print("warming up")
        self.items.append(item)


class Warned:
    """Warns when it is long, which limits nothing."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.warned = False

    def put(self, item: int) -> None:
        self.items.append(item)
        if len(self.items) > 60 and not self.warned:
            self.warned = True
            print("it is long")


class Leaving:
    """Adds nothing once it is full."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        if len(self.items) >= 30:
            return
        self.items.append(item)


class Calling:
    """Another method removes the oldest items."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        self.items.append(item)
        if len(self.items) > 30:
            self.trim()

    def trim(self) -> None:
        del self.items[:-30]


class Slicing:
    """Keeps the newest items in a new list."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        self.items.append(item)
        if len(self.items) > 30:
            self.items = self.items[-30:]


class Either:
    """Two conditions, of which one is a bound."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.full = False

    def put(self, item: int) -> None:
        if len(self.items) > 29 or self.full:
            self.items.pop(0)
        self.items.append(item)


class BySize:
    """Removes the oldest items while they are too large together."""

    def __init__(self) -> None:
        self.items, self.size, self.limit = deque[int](), 0, 600 << 20

    def put(self, item: int) -> None:
        self.items.append(item)
        self.size += item
        while self.size > self.limit:
            self.size -= self.items.popleft()


class ByRoom:
    """Makes room before it adds an item."""

    def __init__(self) -> None:
        self.items, self.used, self.max_bytes = OrderedDict[int, int](), 0, 600 << 20

    def put(self, item: int) -> None:
        while self.items and self.used + item > self.max_bytes:
            _, old = self.items.popitem(last=False)
            self.used -= old
        self.items[item] = item
        self.used += item


class Serving:
    """Takes items out for another reason than their size."""

    def __init__(self) -> None:
        self.items, self.served, self.rate = deque[int](), 0, 4

    def put(self, item: int) -> None:
        self.items.append(item)
        if item > self.rate:
            self.items.popleft()
            self.served += 1


class Strange:
    """Its attributes must not be read through its own code."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        if name == "cap":
            raise AssertionError("the program's code was run")
        return object.__getattribute__(self, name)

    def put(self, item: int) -> None:
        self.items.append(item)
        if len(self.items) > self.cap:
            self.items.pop()


def filled(owner: Any, count: int) -> Any:
    for item in range(count):
        owner.put(item)
    return owner


def facts(owner: Any) -> tuple[Optional[bool], Optional[int]]:
    found = _facts.of([owner, owner.__dict__, owner.__dict__["items"], object()], 2)
    return found.is_bounded, found.limit


@pytest.mark.parametrize(
    ("owner", "limit"), [(Evicting(50), 50), (Ring(60), 60), (Constant(), 30), (OfClass(), 25), (Inherited(), 25)]
)
def test_a_bound_in_the_code_is_found_before_and_after_it_is_reached(owner: Any, limit: int) -> None:
    for count in (0, 20, 100):
        assert facts(filled(owner, count)) == (True, limit)


def test_code_without_a_bound_gives_none() -> None:
    assert facts(filled(Unbounded(), 20)) == (False, None)
    assert facts(filled(Warming(), 20)) == (False, None), "20 exceeds 8, so the comparison is no bound"
    assert facts(filled(Warming(), 4)) == (False, None), "the comparison only prints"
    assert facts(filled(Warned(), 20)) == (False, None), "a warning limits nothing"


@pytest.mark.parametrize(("owner", "limit"), [(Leaving(), 30), (Calling(), 30), (Slicing(), 30), (Either(), 29)])
def test_a_bound_that_is_kept_in_another_way(owner: Any, limit: int) -> None:
    for count in (0, 20, 100):
        assert facts(filled(owner, count)) == (True, limit)


def test_a_bound_that_is_exceeded_is_none() -> None:
    evicting = filled(Evicting(50), 50)
    evicting.cap = 10
    assert facts(evicting) == (False, None)


def test_the_program_s_code_does_not_run() -> None:
    strange = Strange()
    strange.items.append(1)
    assert facts(strange) == (False, None)


def test_a_global_has_the_bound_of_the_functions_of_its_module() -> None:
    for item in range(20):
        keep_recent(item)
        keep_everything(item)
    module = types.ModuleType("program")
    module.__dict__.update(globals())

    def of(container: list[int], namespace: Any) -> Optional[int]:
        return _facts.of([namespace, container, object()], 1).limit

    assert (of(RECENT, globals()), of(EVERYTHING, globals())) == (40, None)


class Slots:
    def __init__(self, slots: int) -> None:
        self.data: list[object] = [None] * slots


def of_list(items: list[object]) -> _facts.Facts:
    return _facts.of([{"data": items}, items, object()], 1)


def test_a_list_that_is_made_with_all_its_slots_stops_when_they_are_filled() -> None:
    ring = Slots(3_000)
    ring.data[:1_296] = [object()] * 1_296
    found = _facts.of([ring, ring.__dict__, ring.data, object()], 2)
    assert (found.length, found.is_bounded, found.limit) == (1_296, True, 3_000)


def test_a_capacity_beside_a_list_of_slots_counts_what_is_filled() -> None:
    ring = Slots(100)
    ring.__dict__["capacity"] = 100
    ring.data[0] = object()
    found = _facts.of([ring, ring.__dict__, ring.data, object()], 2)
    assert (found.length, found.limit) == (1, 100)


def test_a_list_that_grows_is_not_bounded_by_what_it_has() -> None:
    grown: list[object] = []
    for _ in range(41):
        grown.append(object())
    assert (of_list(grown).length, of_list(grown).is_bounded) == (41, False)
    grown.append(None)
    found = of_list(grown)
    assert (found.length, found.is_bounded, found.limit) == (41, None, None), "some items are no tensors"


def test_containers_with_a_bound_in_a_container_leave_the_bound_open() -> None:
    bank: dict[int, deque[object]] = {key: deque([object()], maxlen=40) for key in range(20)}
    inner = bank[0]
    found = _facts.of([{"bank": bank}, bank, inner, object()], 1)
    assert (found.is_bounded, found.limit) == (None, None)
    assert _facts.of([{"bank": bank}, bank, inner, object()], 2).limit == 40
    lists = {key: [object()] for key in range(20)}
    assert _facts.of([{"lists": lists}, lists, lists[0], object()], 1).is_bounded is False


def test_a_bound_in_bytes_is_an_unknown_one() -> None:
    assert facts(filled(BySize(), 20)) == (None, None)
    assert facts(filled(ByRoom(), 20)) == (None, None)
    assert facts(filled(Serving(), 4)) == (False, None)
