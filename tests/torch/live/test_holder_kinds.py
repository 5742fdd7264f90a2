"""Holders other than containers that are directly visible to Python: graphs, hooks, cycles, C++, replaced tensors."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from memctl_agent import _holders, _native
from memctl_agent._holders import _answer, _cpp, _roots

BUDGET_MS = 120_000
HELD: list[Any] = []
_holders.load(lambda: None)


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    yield
    HELD.clear()
    gc.collect()


def block_of(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), max(storage.nbytes(), 1)


def only(answer: dict[str, Any]) -> dict[str, Any]:
    assert len(answer["holders"]) == 1, answer
    return answer["holders"][0]


def weighed(weight: torch.nn.Parameter) -> tuple[int, int]:
    scale = torch.ones(3)
    weight.register_hook(lambda gradient: gradient * scale)
    return block_of(scale)


def test_hooks_of_a_tensor_are_one_holder() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    HELD.append(weight)
    entry = only(_holders.find(_native, [weighed(weight) for _ in range(40)], BUDGET_MS))
    assert (entry["kind"], entry["holder"], entry["blocks"], entry["length"]) == ("hook", "container", 40, 40), entry
    expected = "cell `scale` of function `<lambda>`, 40 tensors, referenced by 40 backward hooks of `Parameter`"
    assert entry["sentence"] == expected
    # The search skips the globals and builtins of functions, because many functions share them.
    function = next(iter(HELD[0]._backward_hooks.values()))
    assert _answer._referents(function) == [function.__closure__]


def batches(count: int) -> Iterator[list[tuple[int, int]]]:
    past = [torch.ones(3) for _ in range(count)]
    yield [block_of(tensor) for tensor in past]


def test_a_generator_that_only_a_loop_refers_to_is_a_root() -> None:
    for blocks in batches(40):
        entry = only(_holders.find(_native, blocks, BUDGET_MS))
        assert (entry["kind"], entry["holder"], entry["blocks"]) == ("list", "container", 40), entry
        assert entry["sentence"] == "list `past`, a local variable of function `batches`, 40 tensors"
    waiting = batches(2)
    assert _roots.frame_of(waiting) is not None, "it has not begun, and holds its arguments"
    assert next(waiting) and _roots.frame_of(waiting) is not None
    assert next(waiting, None) is None and _roots.frame_of(waiting) is None, "it has ended"


def endless(tensor: torch.Tensor) -> Iterator[None]:
    while tensor is not None:
        yield


def test_more_generators_than_fit_into_one_slice_are_all_searched() -> None:
    """A batch that did not fit was left out, so the search was incomplete."""
    waiting = [endless(torch.ones(3)) for _ in range(2_000)]
    for one in waiting:
        next(one)
    hidden, waiting = iter(waiting), []
    # A search that another thread's objects cut short is repeated; a batch that is left out fails every time.
    for _ in range(3):
        search = _holders.begin(_native, [(8, 8)], BUDGET_MS)
        while search.answer is None:
            search.slice()
        if search.answer["complete"]:
            break
    assert search.answer["complete"], search.answer["not_looked_at"]
    assert search.answer["holders"][0]["holder"] == "cpp", search.answer
    assert len(list(hidden)) == 2_000


class Probe:
    def __init__(self) -> None:
        self.acts = {f"{layer}.0": [torch.ones(3) for _ in range(10)] for layer in range(4)}


def test_lists_under_the_keys_of_a_dict_are_one_holder() -> None:
    """Each of them holds a quarter of the blocks, and none of them most."""
    probe = Probe()
    HELD.append(probe)
    blocks = [block_of(tensor) for one in probe.acts.values() for tensor in one]
    entry = only(_holders.find(_native, blocks, BUDGET_MS))
    assert entry["sentence"] == "4 lists in `acts` of `Probe`, 40 tensors", entry
    assert (entry["blocks"], entry["tensors"], entry["length"], entry["is_bounded"]) == (40, 40, 40, False), entry
    assert entry["chain"][-3:] == ["dict, 4 items", "4 lists, 40 items", "Tensor"], entry


class Average:
    def __init__(self) -> None:
        self.total = torch.zeros(())


def test_a_graph_that_is_longer_than_a_slice_is_gone_through_from_its_oldest_end() -> None:
    weight, average, blocks = torch.nn.Parameter(torch.ones(3)), Average(), []
    HELD.append(average)
    for _ in range(400):
        hidden = weight.exp()
        blocks.append(block_of(hidden))
        average.total = average.total + (hidden * 2).tanh().square().mean()
        hidden = None
    # A slice is limited by the clock, so on a busy machine a slice may find nothing, and the search ends there.
    for _ in range(8):
        search = _holders.begin(_native, blocks[:200], BUDGET_MS)
        while search.answer is None:
            search.slice()
        entry = only(search.answer)
        assert "tensor `total` of `Average`" in entry["sentence"], entry
        if entry["blocks"] == 200:
            return
    raise AssertionError(entry)


def test_the_graph_of_a_tensor_that_is_replaced_meanwhile_is_told_of_as_it_was() -> None:
    weight, average = torch.nn.Parameter(torch.ones(3)), Average()
    HELD.append(average)
    hidden = weight.exp()
    blocks = [block_of(hidden)]
    average.total = average.total + hidden.mean()
    hidden = None

    def replaced(_: Any) -> bool:
        HELD[0].total = HELD[0].total + 1
        return True

    search = _holders.begin(_native, blocks, BUDGET_MS)
    search._stages.insert(search._stages.index(search._gather), replaced)
    while search.answer is None:
        search.slice()
    assert only(search.answer)["sentence"] == "the graph of tensor `total` of `Average`", search.answer


def put_before_graphs(search: Any, stage: Any) -> None:
    """Runs a stage directly before each walk of graphs."""
    before = [[stage, one] if one == search._graphs else [one] for one in search._stages]
    search._stages = [one for some in before for one in some]


def test_the_graph_of_a_tensor_that_was_replaced_before_its_graph_was_walked_is_found() -> None:
    weight, average = torch.nn.Parameter(torch.ones(3)), Average()
    HELD.append(average)
    hidden = weight.exp()
    blocks = [block_of(hidden)]
    average.total = average.total + hidden.mean()
    hidden = None

    def replaced(_: Any) -> bool:
        HELD[0].total = HELD[0].total + 1
        return True

    search = _holders.begin(_native, blocks, BUDGET_MS)
    # `total = total + loss` in every step: another tensor whenever the search looks, with the graph of the one before.
    put_before_graphs(search, replaced)
    while search.answer is None:
        search.slice()
    # (A search that begins again finds the tensor before another replaces it, and says what saved the block.)
    assert "tensor `total` of `Average`" in only(search.answer)["sentence"], search.answer


def test_where_what_held_a_tensor_was_replaced_nothing_is_said_of_cpp() -> None:
    weight, holder = torch.nn.Parameter(torch.ones(3)), {"of": Average()}
    HELD.append(holder)
    hidden = weight.exp()
    blocks = [block_of(hidden)]
    holder["of"].total = holder["of"].total + hidden.mean()
    hidden = None

    def replaced(_: Any) -> bool:
        other = Average()
        other.total = HELD[0]["of"].total + 1
        HELD[0]["of"] = other
        return True

    search = _holders.begin(_native, blocks, BUDGET_MS)
    put_before_graphs(search, replaced)
    while search.answer is None:
        search.slice()
    assert [entry for entry in search.answer["holders"] if entry["holder"] == "cpp"] == [], search.answer
    assert not search.answer["complete"], search.answer


class Node:
    def __init__(self) -> None:
        self.own, self.tensor = self, torch.ones(3)


def test_with_the_collector_off_the_newest_cycles_are_found_without_the_whole_heap() -> None:
    HELD.append([[number] for number in range(200_000)])
    # In the program no object is newer than the leaked ones.
    gc.collect()
    gc.disable()
    try:
        blocks = [block_of(Node().tensor) for _ in range(60)]
        # One of the blocks has no tensor.
        search = _holders.begin(_native, [*blocks, (8, 8)], BUDGET_MS)
        while search.answer is None:
            search.slice()
    finally:
        gc.enable()
    entry = next(holder for holder in search.answer["holders"] if holder["kind"] == "cycle")
    assert (entry["blocks"], entry["collector"]) == (60, "off"), search.answer
    # Fewer visits than in one pass over the whole heap, although a slice without time visits some again.
    assert search._in_heap.of_holders.counts()[0] < 200_000, search.answer


def cast(count: int) -> list[tuple[int, int]]:
    """Weights that autocast has copied, without other references."""
    blocks = []
    for _ in range(count):
        layer = torch.nn.Linear(4, 4)
        layer(torch.ones(1, 4))
        blocks.append(block_of(layer.weight))
    return blocks


def test_what_the_cache_of_autocast_holds_is_said_to_be() -> None:
    if not _cpp.Counts.find(torch):
        pytest.skip("this torch does not count what C++ holds")
    with torch.autocast("cpu", torch.bfloat16):
        blocks = cast(20)
        entry = only(sliced(blocks))
        assert (entry["holder"], entry["pattern"], entry["blocks"]) == ("cpp", "autocast_cache", 20), entry
        # From another thread, the main thread is queried.
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(sliced(blocks)))
        thread.start()
        while thread.is_alive():
            thread.join(0.001)
        assert only(answers[0])["pattern"] == "autocast_cache", answers
    assert torch.is_autocast_enabled("cpu") is False


def test_autocast_that_is_left_now_and_then_keeps_nothing() -> None:
    autocast = _cpp.Autocast()
    weight = torch.nn.Parameter(torch.ones(3))
    assert autocast.may_keep(torch, weight) and not autocast.may_keep(torch, torch.ones(3))
    for _ in range(_cpp.LOOKS_MIN):
        with torch.autocast("cpu", torch.bfloat16):
            autocast.look(torch)
    assert autocast.is_on is None, "it was not looked at for long"
    autocast.look(torch)
    assert autocast.is_on is False


def sliced(blocks: list[tuple[int, int]]) -> Any:
    search = _holders.begin(_native, blocks, BUDGET_MS)
    while search.answer is None:
        search.slice()
        threading.Event().wait(0.005)
    return search.answer


def test_what_cpp_alone_holds_is_not_autocast_s_where_that_is_off() -> None:
    if not _cpp.Counts.find(torch):
        pytest.skip("this torch does not count what C++ holds")
    weight = torch.nn.Parameter(torch.ones(3))
    blocks, kept = [block_of(weight)], weight * 2
    assert not _cpp.is_of_cpp_alone(torch, kept), "Python holds it"
    del weight
    entry = only(_holders.find(_native, blocks, BUDGET_MS))
    # Its graph names the holder.
    assert "a leaf of the graph" in entry["sentence"] and "`kept`" in entry["sentence"], entry


def test_the_module_that_was_started_has_two_names_in_a_spawned_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _roots.main_names()[0] == "__main__"
    module = types.ModuleType("__mp_main__")
    code = "import torch\nclass Worker:\n    answered = []\n"
    exec(compile(code, "main.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(sys.modules, "__mp_main__", module)
    assert _roots.main_names() == ["__main__", "__mp_main__"]
    kept = vars(module)["Worker"].answered
    kept.extend(torch.ones(3) for _ in range(5))
    entry = only(_holders.find(_native, [block_of(tensor) for tensor in kept], BUDGET_MS))
    assert "list `answered` of class `Worker`" in entry["sentence"], entry


def test_a_search_goes_on_with_the_blocks_that_live_now() -> None:
    first, second = torch.ones(3), torch.ones(3)
    search = _holders.begin(_native, [block_of(first)], BUDGET_MS)
    del first
    HELD.append({"seen": second})
    blocks = [block_of(second)]
    del second
    search._go(0)
    assert search.renew(blocks)
    while search.answer is None:
        search.slice()
    assert search.answer["found_blocks"] == 1 and "dict" in only(search.answer)["sentence"], search.answer
    assert not search.renew(blocks), "it is over"


def test_modules_of_installed_packages_are_known_by_their_package() -> None:
    places = _roots.Places(())
    assert places.is_of_installed("torch.nn.modules.linear") and not places.is_of_installed("torch")
    assert not places.is_of_installed(f"{__name__.rpartition('.')[2]}.part")


def test_where_chains_were_not_looked_for_to_the_end_nothing_is_held_by_cpp_alone() -> None:
    if not _cpp.Counts.find(torch):
        pytest.skip("this torch does not count what C++ holds")
    weight = torch.nn.Parameter(torch.ones(3))
    hidden = weight.exp()
    HELD.append(hidden.mean())
    blocks = [block_of(hidden)]
    hidden = None

    def unseen(_: Any) -> bool:
        search._cut.add("_variables")
        return True

    search = _holders.begin(_native, blocks, BUDGET_MS)
    search._stages[:7] = [unseen]
    while search.answer is None:
        search.slice()
    assert search.answer["holders"] == [], search.answer


def test_a_search_that_is_over_is_no_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        search = _holders.begin(_native, [(8, 8)], BUDGET_MS)
        while search.answer is None:
            search.slice()
        gone = weakref.ref(search)
        del search
        assert gone() is None
    finally:
        gc.enable()
