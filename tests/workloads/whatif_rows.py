"""Truth for `memctl what-if`: trainings under many allocator settings and limits; each row is a separate process.

    RUN=$(tests/fakegpu/setup 2.11.0)
    $RUN python tests/workloads/whatif_rows.py OUT [--jobs N] [--only NAME ...] [--few]
    $RUN python tests/workloads/whatif_rows.py OUT --limits FILE     runs the rows that FILE lists, with its limits

Runs on a real GPU as well: then without RUN. Each training of `TRAININGS` is recorded once under default settings
(OUT/NAME.pickle), then run again under each of `SETTINGS`, without a limit and with limits between what it allocates
and what it reserves, most of which end in retries or out of memory. OUT/rows.jsonl gets a row for each: the process's
own `memory_stats()` at its end, and whether it ended with OutOfMemoryError. Rows that are there are not run again.
A row is a fork of a process that has imported torch and has not touched the GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import pickle
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "bench/leakbench/train")]
sys.dont_write_bytecode = True

MIB = 1 << 20
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[32:8,64:4,256:2,>:1]",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:64,garbage_collection_threshold:0.8",
    "expandable_segments:True,roundup_power2_divisions:8",
)
# Limits, as shares of the way from the peak of allocated memory to that of reserved memory under default settings.
LIMITS = (-0.15, 0.02, 0.3, 0.8)


def group(name: str) -> Any:
    return importlib.import_module(name)


def leakbench(file: str, name: str, **size: int) -> Callable[[], None]:
    """A training of leakbench, shortened."""
    return lambda: getattr(group(file), name)(**size)


def varied(model: str, batches: tuple[int, ...], steps: int) -> Callable[[], None]:
    """A model of fit_models.py whose batch changes from step to step."""

    def train() -> None:
        rng, one = random.Random(3), group("fit_models").MODELS[model]().cuda()
        optimizer = torch.optim.AdamW(one.parameters())
        for _ in range(steps):
            one.loss(rng.choice(batches)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return train


def lengths(steps: int = 24) -> None:
    """A decoder whose batch and length change; some results are kept for a while."""
    common, rng = group("common"), random.Random(11)
    model, kept = common.TinyGPT(ctx=1024).cuda(), []
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = common.ids(rng.choice([1, 2, 4, 8]), rng.randrange(32, 1000))
        loss = model(x, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        kept.append(torch.empty(rng.randrange(1, 24 * MIB), dtype=torch.uint8, device="cuda"))
        if len(kept) > 5:
            kept.pop(rng.randrange(len(kept)))


def churn(count: int = 4000) -> None:
    """Blocks of all magnitudes, allocated and freed at random."""
    rng, held = random.Random(17), []
    for _ in range(count):
        held.append(torch.empty(int(2 ** rng.uniform(8, 26)), dtype=torch.uint8, device="cuda"))
        if len(held) > 60:
            held.pop(rng.randrange(len(held)))


def cleared(rounds: int = 12) -> None:
    """The program empties its cache itself from time to time."""
    rng = random.Random(23)
    for turn in range(rounds):
        held = [torch.empty(rng.randrange(1, 40 * MIB), dtype=torch.uint8, device="cuda") for _ in range(30)]
        rng.shuffle(held)
        del held[: rng.randrange(10, 30)]
        if turn % 4 == 3:
            torch.cuda.empty_cache()
        rest = [torch.empty(rng.randrange(1, 4 * MIB), dtype=torch.uint8, device="cuda") for _ in range(60)]
        del held, rest


TRAININGS: dict[str, Callable[[], None]] = {
    **{name: leakbench("text", name, epochs=1) for name in ("encoder", "decoder_ema", "recurrent", "experts")},
    **{name: leakbench("text", name, epochs=1) for name in ("varying_length", "checkpointed")},
    "curriculum": leakbench("text", "curriculum", epochs=5),
    **{name: leakbench("vision", name, epochs=1) for name in ("residual", "accumulation", "adversarial", "many_tasks")},
    **{name: leakbench("vision", name, epochs=1) for name in ("rate_finder", "distillation")},
    "unfreezing": leakbench("vision", "unfreezing", epochs=4),
    **{name: leakbench("other", name, epochs=2) for name in ("graphs", "mixer", "autoencoder", "replay_agent")},
    "gpt_lengths": lengths,
    "encoder_batches": varied("encoder", (1, 2, 3, 5, 8), 10),
    "vgg_batches": varied("vgg", (2, 5, 8, 13, 24), 12),
    "unet_batches": varied("unet", (1, 2, 4, 7), 10),
    "vit_batches": varied("vit", (2, 5, 8, 16), 10),
    "churn": churn,
    "cleared": cleared,
}


def one(name: str, conf: str, limit: int | None, record: pathlib.Path | None) -> dict[str, Any]:
    """A training in this process."""
    torch.backends.cudnn.enabled = False
    torch.manual_seed(1)
    random.seed(1)
    if conf:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # (newer versions have another name for it)
            torch.cuda.memory._set_allocator_settings(conf)
    torch.cuda.init()
    if limit is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        # (Half a page more, so that the product is rounded to neither side of a multiple of one.)
        torch.cuda.set_per_process_memory_fraction((limit + 256 * 1024) / total)
    if record:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=4_000_000)
    oom = False
    try:
        TRAININGS[name]()
    except torch.OutOfMemoryError:
        oom = True
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    row: dict[str, Any] = {"kind": name, "torch": torch.__version__, "conf": conf, "limit": limit, "oom": oom}
    row |= {f"peak_{which}": stats[f"{which}_bytes.all.peak"] for which in ("reserved", "allocated", "requested")}
    row |= {"device_allocs": stats["num_device_alloc"], "device_frees": stats["num_device_free"]}
    row |= {"retries": stats["num_alloc_retries"]}
    if record:
        with record.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file, protocol=4)
    return row


class Rows:
    """The rows of a folder, and the processes that make more."""

    def __init__(self, out: pathlib.Path, jobs: int) -> None:
        self.out, self.jobs = out, jobs
        self.file = out / "rows.jsonl"
        self.made: dict[tuple[str, str, int | None], dict[str, Any]] = {}
        self.running: dict[int, tuple[str, str, int | None]] = {}
        for line in self.file.read_text().splitlines() if self.file.exists() else []:
            row = json.loads(line)
            self.made[row["kind"], row["conf"], row["limit"]] = row

    def start(self, name: str, conf: str, limit: int | None, record: bool = False) -> None:
        key = (name, conf, limit)
        if key in self.made or key in self.running.values():
            return
        while len(self.running) >= self.jobs:
            self.wait()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                sys.stdout.flush()
                row = one(name, conf, limit, self.out / f"{name}.pickle" if record else None)
                with self.file.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                status = 0
            except Exception as error:  # printed, and the row is missing
                print(f"{key}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        self.running[child] = key

    def wait(self) -> None:
        """Waits for one of the running processes."""
        child, _status = os.wait()
        self.running.pop(child, None)

    def settle(self) -> None:
        while self.running:
            self.wait()
        self.__init__(self.out, self.jobs)


def limits(row: dict[str, Any]) -> list[int]:
    """The limits that are tried, odd multiples of a mebibyte."""
    allocated, reserved = row["peak_allocated"], row["peak_reserved"]
    found = [int(allocated + share * max(reserved - allocated, allocated // 8)) // (2 * MIB) * 2 * MIB for share in LIMITS]
    return [limit + MIB for limit in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--few", action="store_true", help="every third row")
    parser.add_argument("--limits", type=pathlib.Path)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(asked.out, asked.jobs)
    if asked.limits:
        for line in asked.limits.read_text().splitlines():
            row = json.loads(line)
            rows.start(row["kind"], row["conf"], row["limit"])
        rows.settle()
        return
    names = asked.only or list(TRAININGS)
    for name in names:
        rows.start(name, "", None, record=True)
    rows.settle()
    wanted = []
    for at, name in enumerate(names):
        recorded = rows.made.get((name, "", None))
        if recorded is None:
            continue
        each = [(name, conf, limit) for conf in SETTINGS for limit in (None, *limits(recorded))]
        wanted += each[at % 3 :: 3] if asked.few else each
    for name, conf, limit in wanted:
        rows.start(name, conf, limit)
    rows.settle()
    print(f"{len(rows.made)} rows in {rows.file}")


if __name__ == "__main__":
    main()
