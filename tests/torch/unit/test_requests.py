"""Requests are steps where nothing trains, with any serving library, even if it is imported late."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
import torch

from memctl_agent import _requests

from conftest import Watched


class Mixin:
    """Replaces `transformers.GenerationMixin`."""

    def generate(self, depth: int = 0) -> int:
        """Calls itself, as assisted generation does."""
        if depth < 0:
            raise ValueError("no such depth")
        return depth if depth == 0 else self.generate(depth - 1)


@pytest.fixture
def library() -> Iterator[types.ModuleType]:
    name, owner, method = _requests.PLACES[0]
    original = vars(Mixin)[method]
    before = sys.modules.get(name)
    module = types.ModuleType(name)
    setattr(module, owner, Mixin)
    sys.modules[name] = module
    yield module
    setattr(Mixin, method, original)
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before


def test_each_outermost_request_is_a_step(library: types.ModuleType) -> None:
    watched = Watched()
    for _ in range(3):
        assert Mixin().generate(2) == 0
    assert watched.only("step") == ["step 0", "/step 0", "step 1", "/step 1", "step 2", "/step 2"]
    watched.hooks.remove()
    assert Mixin().generate(1) == 0
    assert len(watched.only("step")) == 6


def test_a_request_that_fails_is_over(library: types.ModuleType) -> None:
    watched = Watched()
    with pytest.raises(ValueError, match="no such depth"):
        Mixin().generate(-1)
    Mixin().generate()
    assert watched.only("step") == ["step 0", "/step 0", "step 1", "/step 1"]
    watched.hooks.remove()


def test_a_library_that_comes_late_is_seen(library: types.ModuleType) -> None:
    name = _requests.PLACES[0][0]
    del sys.modules[name]
    watched = Watched()
    Mixin().generate()
    assert watched.only("step") == []
    sys.modules[name] = library
    torch.nn.Linear(1, 1).eval()
    Mixin().generate()
    assert watched.only("step") == ["step 0", "/step 0"]
    watched.hooks.remove()


def test_where_an_optimizer_steps_a_request_is_no_step(library: types.ModuleType) -> None:
    watched = Watched()
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    steps = watched.only("step")
    assert "/step 0" in steps
    Mixin().generate()
    assert watched.only("step") == steps
    watched.hooks.remove()
