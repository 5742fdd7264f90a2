"""Third-party programs, unchanged under `memctl run`: they end as without it, and every event is stored.

Accelerate's own test script, Lightning's demo modules, a Hugging Face Trainer, a console script. Each needs its
framework in addition to torch and is skipped without it. Values on the fake GPU are garbage, so a program that depends
on them may fail; then it has to fail in the same way.
"""

from __future__ import annotations

import importlib.util
import pathlib
import pickle
import re
import stat
import sys
from typing import Any

import pytest

from conftest import Memctl, Run, both, finish, own_trace, place_of

# Parts of an output with a time, a process or a path.
PASSING = re.compile(r"0x[0-9a-f]+|/tmp/\S+|\d+(\.\d+)? ?(s|ms|it/s|seconds)\b|\d\d:\d\d(:\d\d)?|localhost:\d+")


def plainly(memctl: Memctl, *command: str, **settings: str) -> Run:
    return finish(list(command), {**memctl.environment, "FAKE_GPU_STATE": "", **settings})


def needs(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def ends_alike(expected: Run, recorded: Run) -> None:
    assert recorded.code == expected.code, (expected, recorded)
    assert PASSING.sub("…", recorded.out) == PASSING.sub("…", expected.out), (expected, recorded)


def is_whole(memctl: Memctl, job: str) -> dict[str, Any]:
    answer = memctl.answer("query", "--job", job)
    completeness = answer["completeness"]
    assert completeness["exact"] and completeness["events_dropped"] == 0, completeness
    return answer


def check_equal(memctl: Memctl, job: str, own: pathlib.Path, least: int) -> None:
    """Asserts that the stored events contain PyTorch's own recording of a part of the run."""
    theirs = own_trace(pickle.loads(own.read_bytes()))
    ours = memctl.events(job)
    assert len(theirs) > least, len(theirs)
    assert place_of(theirs, ours) is not None, f"PyTorch has {len(theirs)} events, {len(ours)} are stored"


def test_accelerate_launch_of_accelerates_own_script(memctl: Memctl) -> None:
    needs("accelerate")
    import accelerate.test_utils

    script = pathlib.Path(accelerate.test_utils.__file__).parent / "scripts" / "test_script.py"
    launch = [sys.executable, "-m", "accelerate.commands.launch"]
    flags = ["--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command = [*launch, *flags, str(script)]
    recorded, expected = both(lambda: memctl.record("script", *command), lambda: plainly(memctl, *command))
    ends_alike(expected, recorded)
    [rank] = is_whole(memctl, "script")["ranks"]
    assert rank["events"] > 0, rank


LIGHTNING = """
import sys
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.{module} import {model} as Model
{data}
import pickle, torch
torch.backends.cudnn.enabled = False
torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
seed_everything(0, verbose=False)
trainer = Trainer(
    accelerator="gpu", devices=1, max_epochs=3, limit_train_batches=6, limit_val_batches=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model({arguments}), *loaders)
with open(sys.argv[1], "wb") as file:
    pickle.dump(torch.cuda.memory._snapshot()["device_traces"][0], file)
print(trainer.global_step, trainer.current_epoch)
"""
DEMOS = {
    "boring": ("boring_classes", "BoringModel", "loaders = ()", ""),
    "optimizers by hand": ("boring_classes", "ManualOptimBoringModel", "loaders = ()", ""),
    "transformer": (
        "transformer",
        "LightningTransformer",
        # It would download a text.
        "Model.prepare_data = lambda self: None\n"
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "loaders = [DataLoader(TensorDataset(*torch.randint(0, 64, (2, 24, 16))), batch_size=4)]",
        "vocab_size=64",
    ),
}


@pytest.mark.parametrize("demo", DEMOS)
def test_lightnings_demo_modules(memctl: Memctl, script: Any, tmp_path: pathlib.Path, demo: str) -> None:
    needs("lightning")
    module, model, data, arguments = DEMOS[demo]
    path = script(LIGHTNING.format(module=module, model=model, data=data, arguments=arguments))
    command = [sys.executable, str(path)]
    recorded, expected = both(
        lambda: memctl.record("demo", *command, str(tmp_path / "own.pickle")),
        lambda: plainly(memctl, *command, str(tmp_path / "plain.pickle")),
    )
    assert expected.code == 0, expected
    ends_alike(expected, recorded)
    check_equal(memctl, "demo", tmp_path / "own.pickle", 200)
    [rank] = is_whole(memctl, "demo")["ranks"]
    # 6 batches an epoch, 3 epochs, whether Lightning or the module steps the optimizer.
    assert (rank["epochs"], rank["steps"]) == (3, 18), rank


# As most scripts begin: transformers checks whether torch is installed long before it imports it.
HUGGING_FACE = """
import sys
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
import torch, pickle
torch.backends.cudnn.enabled = False
torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        tokens = torch.arange(16)
        return {"input_ids": tokens, "labels": tokens}

config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    output_dir=sys.argv[2], num_train_epochs=2, per_device_train_batch_size=2, eval_strategy="epoch",
    save_strategy="no", report_to=[], disable_tqdm=True, logging_steps=1000,
)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Data(), eval_dataset=Data())
trainer.train()
with open(sys.argv[1], "wb") as file:
    pickle.dump(torch.cuda.memory._snapshot()["device_traces"][0], file)
print("steps", trainer.state.global_step)
"""


def test_a_hugging_face_trainer_that_imports_transformers_first(
    memctl: Memctl, script: Any, tmp_path: pathlib.Path
) -> None:
    needs("transformers", "accelerate")
    command = [sys.executable, str(script(HUGGING_FACE))]
    recorded, expected = both(
        lambda: memctl.record("hugging", *command, str(tmp_path / "own.pickle"), str(tmp_path / "out")),
        lambda: plainly(memctl, *command, str(tmp_path / "plain.pickle"), str(tmp_path / "out-plain")),
    )
    assert expected.code == 0 and "steps 12" in expected.out, expected
    assert recorded.code == 0 and "steps 12" in recorded.out, recorded
    check_equal(memctl, "hugging", tmp_path / "own.pickle", 1000)
    [rank] = is_whole(memctl, "hugging")["ranks"]
    assert (rank["epochs"], rank["steps"]) == (2, 12), rank


def test_a_console_script(memctl: Memctl, tmp_path: pathlib.Path) -> None:
    # As pip writes console scripts, with the program in a module that finds torch by its name.
    module = tmp_path / "packages" / "a_tool.py"
    module.parent.mkdir()
    module.write_text(
        "import importlib, importlib.util, sys\n"
        "def main():\n"
        "    if importlib.util.find_spec('torch') is None:\n        return 'no torch'\n"
        "    torch = importlib.import_module('torch')\n"
        "    kept = [torch.empty(1 << 20, device='cuda') for _ in range(20)]\n"
        "    print(len(kept), sys.argv[1:])\n    return 7\n"
    )
    tool = tmp_path / "tool"
    tool.write_text(f"#!{sys.executable}\nimport sys\nfrom a_tool import main\nsys.exit(main())\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    settings = {"PYTHONPATH": f"{memctl.environment['PYTHONPATH']}:{module.parent}"}
    recorded, expected = both(
        lambda: memctl.record("tool", str(tool), "--flag", **settings),
        lambda: plainly(memctl, str(tool), "--flag", **settings),
    )
    assert expected.code == 7, expected
    ends_alike(expected, recorded)
    [rank] = is_whole(memctl, "tool")["ranks"]
    assert rank["events"] >= 40, rank
