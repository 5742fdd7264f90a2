"""GPT-2 small from transformers, in usual training code: `torchrun --nproc-per-node 4 train.py [--with lightning]`.

The script does not use memctl. With TRACE=FOLDER in the environment, PyTorch's own recorder runs as well, and every
rank writes its trace and the counters at each epoch's end to the folder, for compare.py. Data and weights are random,
because only memory matters.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
LOCAL = int(os.environ.get("LOCAL_RANK", "0"))
TRACE = os.environ.get("TRACE")
COUNTERS: list[dict[str, Any]] = []


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random sequences."""

    def __init__(self, count: int, length: int) -> None:
        self.ids = torch.randint(0, 50_257, (count, length), generator=torch.Generator().manual_seed(RANK))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def epoch_ended(epoch: int) -> None:
    """The counters that the loop reads at an epoch's end."""
    torch.cuda.synchronize()
    counters = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    COUNTERS.append(
        {
            "epoch": epoch,
            "allocated": counters["allocated_bytes.all.current"],
            "reserved": counters["reserved_bytes.all.current"],
            "device_used": total - free,
        }
    )


def plain(asked: argparse.Namespace) -> None:
    """The loop of most tutorials."""
    model: torch.nn.Module = GPT2LMHeadModel(GPT2Config()).cuda()
    if WORLD > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[LOCAL])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    loader = DataLoader(Tokens(asked.steps * asked.batch, 512), batch_size=asked.batch)
    for epoch in range(asked.epochs):
        for batch in loader:
            ids = batch["input_ids"].cuda()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        epoch_ended(epoch)


def lightning(asked: argparse.Namespace) -> None:
    """The same under Lightning."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = GPT2LMHeadModel(GPT2Config())

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(**batch).loss

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.model(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-5)

        def on_train_epoch_end(self) -> None:
            epoch_ended(self.current_epoch)

    trainer = pl.Trainer(
        max_epochs=asked.epochs,
        precision="bf16-mixed",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(Tokens(asked.steps * asked.batch, 512), batch_size=asked.batch)
    trainer.fit(Module(), loader, DataLoader(Tokens(asked.batch * 2, 512), batch_size=asked.batch))


def trainer(asked: argparse.Namespace) -> None:
    """The same under the Hugging Face Trainer, with gradient checkpointing."""
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Ends(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            epoch_ended(round(state.epoch) - 1)

    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=asked.batch,
        num_train_epochs=asked.epochs,
        bf16=True,
        gradient_checkpointing=True,
        gradient_accumulation_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    data = Tokens(asked.steps * asked.batch * WORLD, 512)
    Trainer(GPT2LMHeadModel(GPT2Config()), arguments, train_dataset=data, callbacks=[Ends()]).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="way", choices=["plain", "lightning", "trainer"], default="plain")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="a rank's batches in an epoch")
    parser.add_argument("--batch", type=int, default=8)
    asked = parser.parse_args()
    torch.cuda.set_device(LOCAL)
    if TRACE:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=5_000_000)
    if WORLD > 1 and asked.way == "plain":
        dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL))
    {"plain": plain, "lightning": lightning, "trainer": trainer}[asked.way](asked)
    if TRACE:
        folder = Path(TRACE)
        folder.mkdir(parents=True, exist_ok=True)
        trace = torch.cuda.memory._snapshot()["device_traces"][LOCAL]
        with (folder / f"rank{RANK}.pickle").open("wb") as file:
            pickle.dump(trace, file)
        (folder / f"rank{RANK}.json").write_text(json.dumps(COUNTERS))
    if dist.is_initialized():
        dist.destroy_process_group()
    if RANK == 0:
        print("trained", asked.way, "on", WORLD, "GPUs:", COUNTERS[-1] if COUNTERS else "no epoch")


if __name__ == "__main__":
    main()
