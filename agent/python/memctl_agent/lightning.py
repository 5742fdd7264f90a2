"""For Lightning: `Trainer(callbacks=[MemctlCallback(job="...")])`.

The callback attaches on every rank. It marks epochs, optimizer steps and evaluation, with the trainer's own numbers. If
an exception ends the training, the session ends as failed. The callback works with `lightning.pytorch` and with
`pytorch_lightning`.
Guarantees: like the rest of this package, it raises nothing into the training. The session ends with the process or
with `memctl_agent.detach()`. So `fit` and a later `test` are in one recording.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

import memctl_agent
from memctl_agent._lifecycle import describe

if TYPE_CHECKING:
    from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]
else:

    def _callback() -> type:
        """The base class, from the package that the program has imported, otherwise from the one that is installed."""
        names = ("lightning.pytorch", "pytorch_lightning")
        for name in sorted(names, key=lambda name: name not in sys.modules):
            try:
                return importlib.import_module(name).Callback
            except ImportError:
                continue
        raise ImportError("memctl_agent.lightning needs Lightning; install it with `pip install lightning`")

    Callback = _callback()

__all__ = ["MemctlCallback"]


class MemctlCallback(Callback):
    """Attaches memctl and marks the trainer's progress. The arguments are those of `memctl_agent.attach`."""

    def __init__(
        self,
        job: Optional[str] = None,
        *,
        daemon: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        stacks: bool = True,
    ) -> None:
        self._job, self._daemon, self._labels, self._stacks = job, daemon, labels, stacks
        self._step: Optional[int] = None
        self._range = memctl_agent.Range()
        self._epoch = memctl_agent.Range()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Attaches. If there is a session, it continues."""
        memctl_agent.attach(
            self._job,
            daemon=self._daemon,
            rank=int(trainer.global_rank),
            world_size=int(trainer.world_size),
            labels=self._labels,
            stacks=self._stacks,
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins an epoch and the phase `train`. This ends the previous epoch, which includes its validation."""
        self._epoch = memctl_agent.epoch(trainer.current_epoch)
        memctl_agent.phase("train")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begins a step. If gradients are accumulated, several batches are one step."""
        if self._step != trainer.global_step:
            self._step = trainer.global_step
            self._range = memctl_agent.step(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Ends the step, if the optimizer has stepped in this batch."""
        if self._step != trainer.global_step:
            self._range.end()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins the phase `eval`, also for the sanity check before the training."""
        memctl_agent.phase("eval")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Begins the phase `train` again, if the validation was within `fit`."""
        if trainer.state.fn == "fit":
            memctl_agent.phase("train")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins the phase `eval`. It lasts until another phase begins."""
        memctl_agent.phase("eval")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins the phase `eval`. It lasts until another phase begins."""
        memctl_agent.phase("eval")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the open step and the last epoch, before the trainer moves the model from the device. Another `fit` may
        begin with the same step number."""
        self._range.end()
        self._epoch.end()
        self._step = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends the session as failed."""
        memctl_agent.detach(describe(exception))
