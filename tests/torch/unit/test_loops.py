"""The marks of typical training loops, and their order: no mark is set explicitly here.

(Over 400 lines: each loop reads like the program that it represents.)
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from conftest import Watched


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def loader(batches: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.zeros(batches, 4)), batch_size=1)


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


STEP = ["phase forward", "/phase forward", "phase backward", "/phase backward", "phase optimizer", "/phase optimizer"]


def test_plain_loop(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for _ in range(2):
        train_step(net, optimizer, torch.zeros(1, 4))
    assert watched.words == [
        "epoch 0",
        "phase train",
        *["step 0", *STEP[2:], "/step 0"],
        *["step 1", *STEP, "/step 1"],
        *["step 2", "phase forward"],
    ]
    assert not watched.book.has_epochs


def test_epochs_with_validation(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    train, validation = loader(2), loader(3)
    for _ in range(2):
        net.train()
        for (x,) in train:
            train_step(net, optimizer, x)
        net.eval()
        with torch.no_grad():
            for (x,) in validation:
                net(x)
    first = ["step 0", *STEP, "/step 0", "step 1", *STEP, "/step 1", "/phase train", "phase eval"]
    second = ["step 2", *STEP, "/step 2", "step 3", *STEP, "/step 3", "/phase train", "phase eval"]
    assert watched.words == [
        *["epoch 0", "phase train", *first],
        *["/phase eval", "phase train", "/epoch 0", "epoch 1", *second],
    ]
    # An evaluation's loader has ended: if the program ends here, its last epoch has the state of that moment. The
    # evaluation is only known to be over when the program ends, which has freed its memory by then.
    settled = watched.recorder.settled
    with torch.no_grad():
        for (x,) in validation:
            net(x)
    assert watched.recorder.settled == settled + 1
    watched.book.close(False)
    assert watched.words[-2:] == ["/epoch 1", "/phase eval"]


def test_the_last_epoch_has_the_state_after_its_loop(watched: Watched) -> None:
    # In `optimizer.step()` the locals of the program's step are live; after its loop they are not.
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    for (x,) in loader(3):
        train_step(net, optimizer, x)
        seen.append(watched.recorder.settled)
    assert watched.recorder.settled == seen[-1] + 1
    # An optimizer that does not lead steps after the leader's step has ended.
    other = torch.optim.SGD(model().parameters(), lr=0.1)
    other.step()
    assert watched.recorder.settled == seen[-1] + 2


def test_sanity_validation_comes_first(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train, validation = loader(1), loader(1)
    net.eval()
    with torch.no_grad():
        for (x,) in validation:
            net(x)
    net.train()
    for _ in range(2):
        for (x,) in train:
            train_step(net, optimizer, x)
    assert watched.only("epoch", "step") == [
        *["epoch 0", "step 0", "/step 0", "/epoch 0"],
        *["epoch 1", "step 1", "/step 1"],
    ]


def test_evaluation_whose_loader_has_gradients_on(watched: Watched) -> None:
    """Some trainers switch gradients off only within each evaluation step."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train, validation = loader(1), loader(2)
    for _ in range(3):
        net.train()
        for (x,) in train:
            train_step(net, optimizer, x)
        net.eval()
        for (x,) in validation:
            with torch.no_grad():
                net(x)
    assert watched.only("epoch")[-1] == "epoch 2"
    assert watched.only("step").count("step 2") == 1


def test_gradient_accumulation(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, (x,) in enumerate(loader(4)):
        net(x).sum().backward()
        if number % 2 == 1:
            optimizer.step()
    half = STEP[:4]
    assert watched.words == [
        *["epoch 0", "phase train"],
        *["step 0", *half, *half, *STEP[4:], "/step 0"],
        *["step 1", *half, *half, *STEP[4:], "/step 1"],
    ]


def test_two_optimizers(watched: Watched) -> None:
    """A GAN: the optimizer seen first determines the steps."""
    generator, judge = model(), nn.Linear(2, 1)
    first = torch.optim.Adam(judge.parameters())
    second = torch.optim.Adam(generator.parameters())
    for _ in range(4):
        judge(generator(torch.zeros(1, 4)).detach()).sum().backward()
        first.step()
        judge(generator(torch.zeros(1, 4))).sum().backward()
        second.step()
    assert watched.only("step") == [
        *["step 0", "/step 0", "step 1", "/step 1", "step 2", "/step 2", "step 3", "/step 3", "step 4"]
    ]
    assert watched.only("phase").count("phase optimizer") == 8


def test_an_optimizer_recreated_every_epoch(watched: Watched) -> None:
    """The old optimizers are kept, as schedulers keep them; the current one determines the steps."""
    net, kept = model(), []
    for _ in range(4):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        kept.append(optimizer)
        for (x,) in loader(3):
            train_step(net, optimizer, x)
    assert watched.only("step")[-2:] == ["step 11", "/step 11"]
    assert watched.only("epoch")[-1] == "epoch 3"


def test_two_optimizers_of_the_same_parameters(watched: Watched) -> None:
    """Two optimizers step alternately: one of them determines the steps, once both have been seen."""
    net = model()
    one, other = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam(net.parameters())
    for _ in range(6):
        train_step(net, one, torch.zeros(1, 4))
        train_step(net, other, torch.zeros(1, 4))
    assert watched.only("step").count("/step 6") == 1 and "/step 7" not in watched.only("step")


def test_a_rival_that_stopped_makes_room(watched: Watched) -> None:
    """A warm-up, a second phase of a few steps, and the rest, each with an optimizer for other parameters."""
    net = model()
    layers, steps = [net[0].weight, net[2].weight, net[2].bias], (3, 3, 30)
    kept = [torch.optim.SGD([parameter], lr=0.1) for parameter in layers]
    for optimizer, count in zip(kept, steps):
        for _ in range(count):
            train_step(net, optimizer, torch.zeros(1, 4))
    # The third is first seen while the second may still step again, and then while the first may.
    assert watched.only("step").count("/step 15") == 1


def test_another_optimizer_takes_over(watched: Watched) -> None:
    net = model()
    warm_up = torch.optim.SGD(net[0].parameters(), lr=0.1)
    train_step(net, warm_up, torch.zeros(1, 4))
    optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
    for _ in range(10):
        train_step(net, optimizer, torch.zeros(1, 4))
    # Eight steps of one for other parameters are needed while the first one is alive.
    ends = [word for word in watched.only("step") if word.startswith("/")]
    assert ends == ["/step 0", "/step 1", "/step 2", "/step 3"]


def test_leader_that_is_gone_is_replaced_at_once(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train_step(net, optimizer, torch.zeros(1, 4))
    del optimizer
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train_step(net, optimizer, torch.zeros(1, 4))
    assert [word for word in watched.only("step") if word.startswith("/")] == ["/step 0", "/step 1"]


def test_frozen_teacher_is_no_evaluation(watched: Watched) -> None:
    net, teacher = model(), model().requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    teacher.eval()
    train = loader(1)
    for _ in range(2):
        net.train()
        teacher.eval()
        for (x,) in train:
            with torch.no_grad():
                teacher(x)
            train_step(net, optimizer, x)
    assert "phase eval" not in watched.words
    assert watched.only("epoch") == ["epoch 0", "/epoch 0", "epoch 1"]


def test_training_in_evaluation_mode(watched: Watched) -> None:
    """Fine-tuning with frozen statistics: the flags say evaluation, the optimizer says training."""
    net = model()
    net.eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train = loader(2)
    for _ in range(3):
        for (x,) in train:
            train_step(net, optimizer, x)
    assert watched.only("epoch") == ["epoch 0", "/epoch 0", "epoch 1", "/epoch 1", "epoch 2"]
    assert watched.only("phase").count("phase eval") == 1


def test_evaluation_between_steps_without_a_loader(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    train_step(net, optimizer, torch.zeros(1, 4))
    watched.recorder.clear()
    net.eval()
    with torch.no_grad():
        net(torch.zeros(1, 4))
    net.train()
    train_step(net, optimizer, torch.zeros(1, 4))
    # The step that had begun begins again after the evaluation.
    assert watched.words[:8] == [
        *["/phase forward", "/phase train", "phase eval", "/phase eval", "phase train"],
        *["step 1", "phase forward", "/phase forward"],
    ]


def test_flags_restored_without_a_call(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train = loader(1)
    net.train()
    for _ in range(2):
        for (x,) in train:
            train_step(net, optimizer, x)
        net.eval()
        for module in net.modules():
            module.training = True
    assert watched.only("epoch") == ["epoch 0", "/epoch 0", "epoch 1"]
    assert watched.only("phase").count("phase train") == 2


def test_loaders_that_change(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statistics = loader(3)
    for _ in statistics:
        pass
    train = loader(1)
    for _ in range(2):
        for (x,) in train:
            train_step(net, optimizer, x)
    second_stage = loader(1)
    for _ in range(3):
        for (x,) in second_stage:
            train_step(net, optimizer, x)
    # The second stage is recognised when it is iterated again.
    assert watched.only("epoch") == ["epoch 0", "/epoch 0", "epoch 1", "/epoch 1", "epoch 2", "/epoch 2", "epoch 3"]


def test_loader_made_for_every_epoch(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        train = loader(1)
        for (x,) in train:
            train_step(net, optimizer, x)
        del train
    assert watched.only("epoch")[-1] == "epoch 2"


def test_drawing_single_batches_makes_no_epochs(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train = loader(5)
    for _ in range(4):
        (x,) = next(iter(train))
        train_step(net, optimizer, x)
    assert watched.only("epoch") == ["epoch 0"] and not watched.book.has_epochs
    assert watched.only("step")[-2:] == ["step 3", "/step 3"]


def test_a_program_has_epochs_once_it_iterates(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, (x,) in enumerate(loader(3)):
        assert watched.book.has_epochs == (number > 0)
        train_step(net, optimizer, x)


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(4)


def test_endless_loader(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, x in enumerate(DataLoader(Endless(), batch_size=2)):
        if number == 3:
            break
        train_step(net, optimizer, x)
    steps = [word for n in range(3) for word in (f"step {n}", f"/step {n}")]
    assert watched.only("epoch", "step") == ["epoch 0", *steps, "step 3"]


def test_loader_read_one_batch_ahead(watched: Watched) -> None:
    """Like accelerate and the Hugging Face trainer: they train on the last batch after the loader has ended."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train = loader(3)

    def ahead():
        batches = iter(train)
        current = next(batches)
        for following in batches:
            yield current
            current = following
        yield current

    for _ in range(2):
        for (x,) in ahead():
            train_step(net, optimizer, x)
    ends = [word for word in watched.only("step") if word.startswith("/")]
    assert ends == [f"/step {n}" for n in range(6)]
    assert watched.only("epoch") == ["epoch 0", "/epoch 0", "epoch 1"]
    # From the second epoch on the last step has its forward pass too.
    assert watched.words[-7:] == [*STEP, "/step 5"]


def test_optimizer_that_steps_in_gradient_hooks(watched: Watched) -> None:
    net = model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    for _ in range(3):
        net(torch.zeros(1, 4)).sum().backward()
    assert [word for word in watched.only("step") if word.startswith("/")] == ["/step 0", "/step 1", "/step 2"]
    assert watched.only("phase").count("phase backward") == 3


def test_closure_that_computes_gradients(watched: Watched) -> None:
    """Like Lightning: forward and backward happen within `optimizer.step(closure)`."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in loader(1):

        def closure(x: torch.Tensor = x):
            loss = net(x).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert watched.words == ["epoch 0", "phase train", "step 0", *STEP, "/step 0"]


def test_train_is_called_behind_the_first_batch(watched: Watched) -> None:
    """Like the Hugging Face trainer: after an evaluation it reads the loader before it calls `train()`."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train, validation = loader(2), loader(1)
    for _ in range(2):
        for (x,) in train:
            net.train()
            train_step(net, optimizer, x)
        net.eval()
        for _ in validation:
            pass
    assert watched.only("epoch") == ["epoch 0", "/epoch 0", "epoch 1"]
    assert watched.words[watched.words.index("step 2") :][:7] == ["step 2", *STEP]


def test_lbfgs_closure(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(1, 4)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    assert [word for word in watched.only("step") if word.startswith("/")] == ["/step 0", "/step 1"]


def test_loader_workers_are_not_heard(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train = DataLoader(TensorDataset(torch.zeros(4, 4)), batch_size=1, num_workers=2, persistent_workers=True)
    for _ in range(2):
        for (x,) in train:
            train_step(net, optimizer, x)
    assert watched.only("epoch") == ["epoch 0", "/epoch 0", "epoch 1"]
    assert watched.only("step")[-1] == "/step 7"


def test_threads_that_do_not_train_are_not_heard(watched: Watched) -> None:
    import threading

    net, other = model(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train_step(net, optimizer, torch.zeros(1, 4))
    before = list(watched.words)
    thread = threading.Thread(
        target=lambda: train_step(other, torch.optim.SGD(other.parameters(), lr=0.1), torch.zeros(1, 4))
    )
    thread.start()
    thread.join()
    assert watched.words == before
