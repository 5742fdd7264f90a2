"""Genuine trainers, with the automatic marks alone and with the package's callbacks.

Each needs its framework beside torch and is skipped without it. Nothing is attached: the marks are the subject.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Watched
from test_loops import loader

STEPS = [word for number in range(4) for word in (f"step {number}", f"/step {number}")]
EPOCHS = ["epoch 0", "/epoch 0", "epoch 1"]
# With a callback, the last epoch ends as well: the trainer calls the callback at the end of the training.
ENDED_EPOCHS = [*EPOCHS, "/epoch 1"]


@pytest.fixture(autouse=True)
def nothing_attaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMCTL_DISABLED", "1")


def ends(watched: Watched, *kinds: str) -> list[str]:
    return [word for word in watched.only(*kinds) if word.startswith("/")]


def lightning_fit(callbacks: list[Any], accumulate: int = 1) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch: Any, index: int) -> None:
            self.layer(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=accumulate,
        callbacks=callbacks,
    )
    trainer.fit(Module(), loader(2 * accumulate), loader(1))


def test_lightning_without_a_callback(watched: Watched) -> None:
    lightning_fit([])
    assert watched.only("step") == STEPS
    assert watched.only("epoch") == EPOCHS
    # The sanity check, and one validation an epoch.
    assert watched.words.count("phase eval") == 3
    assert watched.words.count("phase optimizer") == watched.words.count("phase backward") == 4


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning_callback(watched: Watched, accumulate: int) -> None:
    pytest.importorskip("lightning")
    from memctl_agent.lightning import MemctlCallback

    lightning_fit([MemctlCallback(job="lightning")], accumulate)
    assert ends(watched, "step") == ["/step 0", "/step 1", "/step 2", "/step 3"]
    assert watched.only("epoch") == ENDED_EPOCHS
    assert watched.words.count("phase eval") == 3 and watched.words.count("phase backward") == 4 * accumulate


def hugging_face_train(callbacks: list[Any], folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8, bos_token_id=0)
    config.eos_token_id = 0

    class Data(torch.utils.data.Dataset):
        def __init__(self, size: int) -> None:
            self.size = size

        def __len__(self) -> int:
            return self.size

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            tokens = torch.arange(8)
            return {"input_ids": tokens, "labels": tokens}

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Data(4),
        eval_dataset=Data(2),
        callbacks=callbacks,
    )
    trainer.train()


def test_hugging_face_without_a_callback(watched: Watched, tmp_path: Path) -> None:
    hugging_face_train([], tmp_path)
    assert watched.only("step") == STEPS
    assert watched.only("epoch") == EPOCHS
    assert watched.words.count("phase eval") == 2
    assert watched.words.count("phase backward") == 8


def test_hugging_face_callback(watched: Watched, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from memctl_agent.transformers import MemctlCallback

    hugging_face_train([MemctlCallback(job="trainer")], tmp_path)
    assert ends(watched, "step") == ["/step 0", "/step 1", "/step 2", "/step 3"]
    assert watched.only("epoch") == ENDED_EPOCHS
    assert watched.words.count("phase eval") == 2


def test_accelerate_tracker(watched: Watched) -> None:
    accelerate = pytest.importorskip("accelerate")
    from memctl_agent.accelerate import MemctlTracker

    accelerator = accelerate.Accelerator(cpu=True, log_with=[MemctlTracker(job="accelerate")])
    accelerator.init_trackers("project", {"lr": 0.1, "schedule": object()})
    net = torch.nn.Linear(4, 1)
    net, optimizer, train = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), loader(2))
    for _ in range(2):
        net.train()
        for number, (x,) in enumerate(train):
            accelerator.backward(net(x).mean())
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": torch.zeros(1), "number": number}, step=number)
    accelerator.end_training()
    assert ends(watched, "step") == ["/step 0", "/step 1", "/step 2", "/step 3"]
    assert watched.only("epoch") == EPOCHS
    assert watched.only("note")[:2] == ["note config lr=0.1", "note log at step 0 number=0"]
