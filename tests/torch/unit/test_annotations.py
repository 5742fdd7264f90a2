"""Names and explicit marks, and which source takes precedence when several set marks."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.profiler import record_function

import memctl_agent
from memctl_agent._annotations import MODE, REGION, STEP, meaning_of

from conftest import Watched
from test_loops import loader, model, train_step


def test_named_epochs_and_steps_silence_the_automatic_ones(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train = loader(2)
    for epoch in range(5, 7):
        with record_function(f"epoch#{epoch}"):
            for number, (x,) in enumerate(train):
                with record_function(f"step#{10 * epoch + number}"):
                    train_step(net, optimizer, x)
            with record_function("validate"):
                pass
    assert watched.only("epoch", "step") == [
        # An earlier automatic mark is not ended but taken over.
        *["epoch 0", "epoch 5", "step 0", "step 50", "/step 50", "step 51", "/step 51", "/epoch 5"],
        *["epoch 6", "step 60", "/step 60", "step 61", "/step 61", "/epoch 6"],
    ]
    assert watched.only("phase")[-4:] == ["/phase train", "phase eval", "/phase eval", "phase train"]


def test_a_profiler_that_ends_gives_the_steps_back(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(2):
        with record_function(f"ProfilerStep#{number}"):
            train_step(net, optimizer, torch.zeros(1, 4))
    watched.recorder.clear()
    for _ in range(10):
        train_step(net, optimizer, torch.zeros(1, 4))
    assert watched.only("step") == ["step 2", "/step 2", "step 3", "/step 3", "step 4"]


def test_genuine_profiler_schedule(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
        for _ in range(3):
            train_step(net, optimizer, torch.zeros(1, 4))
            profiler.step()
    assert [word for word in watched.only("step") if word.startswith("/")][:3] == ["/step 0", "/step 1", "/step 2"]


def test_regions(watched: Watched) -> None:
    @record_function("decorated")
    def work() -> int:
        with record_function("inner"):
            return 1

    assert work() == 1
    with pytest.raises(ValueError), record_function("fails"):
        raise ValueError
    assert watched.only("region") == [
        *["region decorated", "region inner", "/region inner", "/region decorated"],
        *["region fails", "/region fails"],
    ]


def test_regions_of_a_step_are_bounded(watched: Watched) -> None:
    for _ in range(1000):
        with record_function("layer"):
            pass
    assert len(watched.only("region")) == 128
    with memctl_agent.region("mine"):
        pass
    assert watched.only("region")[-2:] == ["region mine", "/region mine"]


def test_ranges_left_open_are_bounded(watched: Watched) -> None:
    kept = [record_function(f"open {number}") for number in range(500)]
    for number, one in enumerate(kept):
        watched.book.step_begin(number, 1)
        one.__enter__()
    assert len(watched.only("region")) == 256
    for one in reversed(kept):
        one.__exit__(None, None, None)
    assert len(watched.only("region")) == 512


@pytest.mark.parametrize(
    "name", ["Optimizer.load_state_dict#SGD.x", "enumerate(DataLoader)#X.__next__", "nccl:all_reduce"]
)
def test_ranges_of_libraries_say_nothing(name: str) -> None:
    assert meaning_of(name) is None


def test_gradients_that_are_given_back_are_told_and_no_mark(watched: Watched) -> None:
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    settled = watched.recorder.settled
    optimizer.zero_grad()
    assert watched.recorder.settled == settled + 1
    assert not watched.only("region")


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("step#7", (STEP, 7)),
        ("step#-7", (REGION, 0)),
        ("step#" + "9" * 5000, (REGION, 0)),
        ("step#\u0663", (REGION, 0)),
        ("epoch#4294967296", (REGION, 0)),
        ("evaluate model", (MODE, 2)),
    ],
)
def test_names(name: str, meaning: tuple[int, int]) -> None:
    assert meaning_of(name) == meaning


def test_calls_by_hand_are_heard_alone(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(1, 3):
        memctl_agent.epoch(epoch)
        for step in range(2):
            memctl_agent.step(step)
            with record_function("step#99"):
                train_step(net, optimizer, torch.zeros(1, 4))
    watched.book.close(False)
    assert watched.only("epoch", "step") == [
        "epoch 0",
        *["epoch 1", "step 0", "/step 0", "step 1", "/epoch 1", "epoch 2"],
        # The program ended: its last epoch has the state of the last boundary, so it ends before the open step.
        *["/step 1", "step 0", "/step 0", "step 1", "/epoch 2", "/step 1"],
    ]


def test_context_managers(watched: Watched) -> None:
    memctl_agent.phase("train")
    with memctl_agent.epoch(0), memctl_agent.step(4), memctl_agent.phase("eval"), memctl_agent.region("r"):
        memctl_agent.note("here")
    assert watched.words == [
        *["epoch 0", "phase train", "step 4", "/phase train", "phase eval", "region r", "note here"],
        *["/region r", "/phase eval", "phase train", "/step 4", "/epoch 0"],
    ]


def test_wrong_arguments_do_nothing(watched: Watched, trouble: None) -> None:
    before = list(watched.words)
    for call in (
        lambda: memctl_agent.epoch(-1),
        lambda: memctl_agent.epoch(2**32),
        lambda: memctl_agent.step("x"),  # type: ignore[arg-type]
        lambda: memctl_agent.phase("backwards"),
        lambda: memctl_agent.step(None),  # type: ignore[arg-type]
    ):
        with call():
            pass
    assert watched.words == before
    assert memctl_agent.status()["trouble"]


def test_failure_leaves_epoch_and_step_open(watched: Watched) -> None:
    memctl_agent.epoch(3)
    memctl_agent.step(1)
    watched.recorder.clear()
    watched.book.close(True)
    assert watched.only("epoch", "step") == []


def test_what_was_open_before_the_session_is_written_when_it_begins(watched: Watched) -> None:
    from memctl_agent._book import EVAL, HAND, Book

    from conftest import Recorder

    book, recorder = Book(), Recorder()
    book.epoch_begin(7, HAND)
    book.step_begin(70, HAND)
    book.mode_begin(EVAL, HAND)
    book.region_begin("load", HAND)
    book.open(recorder.mark)
    assert recorder.words == ["epoch 7", "step 70", "phase eval", "region load"]


def test_notes(watched: Watched) -> None:
    torch.cuda.empty_cache()
    torch.cuda.memory.empty_cache()
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
    assert [word for word in watched.only("note") if "settings" not in word] == ["note empty_cache", "note empty_cache"]
    assert "note allocator settings: max_split_size_mb:64" in watched.words
