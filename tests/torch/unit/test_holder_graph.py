"""The walk of an autograd graph that is too long for one slice: the next slice continues where the last one stopped."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch

from memctl_agent import _holders
from memctl_agent._holders._graph import Graph
from memctl_agent._holders._memory import Memory
from memctl_agent._holders._tensors import Tensors
from memctl_agent._holders._trail import Trail

Blocks = list[tuple[int, int]]
# Far more than a search takes: the result must not depend on the machine's load.
BUDGET_MS = 60_000
SLICES_MAX = 2_000
kept: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> Any:
    yield
    kept.clear()


class Average:
    """A running average without `detach`: its graph contains the graphs of all steps."""

    def __init__(self, steps: int) -> None:
        self.layer = torch.nn.Linear(4, 4)
        self.value = torch.zeros(())
        # The results of `tanh`, which only the graph holds.
        self.blocks: Blocks = []
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """One step of a training."""
        result = torch.tanh(self.layer(torch.randn(4, 4)))
        self.blocks.append((result.data_ptr(), result.untyped_storage().nbytes()))
        self.value = 0.9 * self.value + 0.1 * result.sum()


def looks(count: int) -> Callable[[], bool]:
    """A clock: the slice ends after this many looks at it."""
    left = iter(range(count))
    return lambda: next(left, None) is not None


def walk(average: Average, blocks: Blocks, trail: Trail, count: int = 10**6, *others: Any) -> tuple[Graph, set[int]]:
    """Walks for one slice. Returns the blocks that were found."""
    memory, missing = Memory(), set(range(len(blocks)))
    graph = Graph(torch, Tensors(torch, blocks), memory, looks(count), trail)
    graph.walk([average.value, *others], missing)
    graph.close()
    memory.close()
    return graph, set(graph.found)


def in_slices(average: Average, blocks: Blocks, trail: Trail, count: int, between: Callable[[], None]) -> list[Graph]:
    """Walks in slices until the graph was walked to its end."""
    graphs = []
    while len(graphs) < SLICES_MAX:
        graphs.append(walk(average, blocks, trail, count)[0])
        if not graphs[-1].is_cut:
            return graphs
        between()
    raise AssertionError("no end")


def test_each_node_is_visited_once() -> None:
    average = Average(300)
    # One block is not in the graph, so the walk does not end before the graph does.
    blocks = [*average.blocks, (64, 512)]
    whole, _ = walk(average, blocks, Trail())
    graphs = in_slices(average, blocks, Trail(), 40, lambda: None)
    assert len(graphs) > 10 and sum(graph.nodes for graph in graphs) == whole.nodes
    found = set().union(*(graph.found for graph in graphs))
    assert found == set(whole.found) == set(range(300))


def test_a_tensor_that_is_replaced_between_slices_changes_nothing() -> None:
    average = Average(100)
    blocks = [*average.blocks, (64, 512)]
    graphs = in_slices(average, blocks, Trail(), 60, average.step)
    assert len(average.blocks) > 105
    assert set().union(*(graph.found for graph in graphs)) == set(range(100))
    # The old nodes are not visited again.
    assert sum(graph.nodes for graph in graphs) <= walk(average, blocks, Trail())[0].nodes


def test_a_tensor_that_is_replaced_by_another_graph_hides_no_block() -> None:
    average, other, trail = Average(100), Average(20), Trail()
    blocks = [*average.blocks, *other.blocks, (64, 512)]
    assert walk(average, blocks, trail, 60)[0].is_cut
    # The first graph is not reached from here. So the walk begins again, and then finds both.
    graph, found = walk(other, blocks, trail)
    assert graph.is_cut and found == set(range(100, 120))
    graph, found = walk(other, blocks, trail, 10**6, average.value)
    assert not graph.is_cut and found == set(range(120))
    # Nodes that were visited to the end are not visited by a later slice.
    assert walk(other, blocks, trail, 10**6, average.value)[1] == set()


def test_between_two_slices_no_node_is_kept() -> None:
    average, trail = Average(100), Trail()
    blocks = [*average.blocks, (64, 512)]
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        assert walk(average, blocks, trail, 60)[0].is_cut
        assert all(type(one) in (int, tuple) for one in (*trail.above, *trail.edge, *trail.waiting))
        context = weakref.ref(average.layer)
        average.layer = torch.nn.Linear(4, 4)
        average.value = torch.zeros(())
        assert context() is None
    finally:
        if was_enabled:
            gc.enable()


class Walk:
    """Replaces the native walk from the roots. It finds one tensor, which is a global of this module."""

    def __init__(self, _: Blocks) -> None:
        self.is_begun = False

    def root(self, _: Any, namespace: Any) -> int:
        """Adds a root."""
        return 0

    def go(self, *_: Any) -> bool:
        """Visits everything."""
        self.is_begun = True
        return True

    def starts(self) -> list[int]:
        """The tensors with a graph."""
        return [1] if self.is_begun else []

    def found(self) -> list[tuple[int, int]]:
        """Blocks with a chain."""
        return []

    def has_all(self) -> bool:
        """Whether each block has a chain."""
        return False

    def shelve(self) -> None:
        """Defers references."""

    def chains(self, numbers: list[int]) -> list[list[int]]:
        """Objects from the root to these."""
        return [[0, number] for number in numbers]

    def roots(self, numbers: list[int]) -> list[int]:
        """Their roots."""
        return [0 for _ in numbers]

    def paths(self, _: Any, __: Any, numbers: list[int]) -> list[Any]:
        """The same objects themselves."""
        return [[globals(), kept[0].value] for _ in numbers]

    def number(self, _: int) -> Optional[int]:
        """The number of an object."""
        return None

    def counts(self) -> tuple[int, int]:
        """Visited and refused objects."""
        return 2, 0


class Heap:
    """Replaces the native walk of the heap. It can see nothing."""

    def __init__(self, _: Blocks) -> None: ...

    def generators(self, _: int) -> tuple[bool, list[Any]]:
        """Suspended generators."""
        return True, []

    def can_tell(self) -> bool:
        """Whether the heap can be visited."""
        return False

    def counts(self) -> tuple[int, int]:
        """Visited and missed objects."""
        return 0, 0


NATIVE = types.SimpleNamespace(Walk=Walk, Heap=Heap, frame_values=lambda *_: [])


def test_a_chain_that_is_longer_than_a_slice_holds_the_oldest_blocks() -> None:
    _holders.load(lambda: None)
    average = Average(600)
    kept.append(average)
    answer = _holders.find(NATIVE, average.blocks[:256], BUDGET_MS)
    assert answer["found_blocks"] == 256 and answer["not_looked_at"] == [], answer
    [holder] = answer["holders"]
    assert holder["kind"] == "autograd" and holder["blocks"] == 256
