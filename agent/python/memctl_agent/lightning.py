"""For Lightning: `Trainer(callbacks=[MemctlCallback(job="...")])`.

The callback attaches on every rank, and marks epochs, optimizer steps and evaluation with the trainer's own numbers. An
exception becomes the session's failure. It works with `lightning.pytorch` and with `pytorch_lightning`.
Guarantees: like the rest of this package, it raises nothing into training. The session ends with the process or by
`memctl_agent.detach()`, so that `fit` and a later `test` are one recording.
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
        """The base class of the package that the program uses, or of the one that is installed."""
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
    """Attaches memctl and marks the trainer's progress. Arguments are those of `memctl_agent.attach`."""

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

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Attaches; an existing session continues."""
        memctl_agent.attach(
            self._job,
            daemon=self._daemon,
            rank=int(trainer.global_rank),
            world_size=int(trainer.world_size),
            labels=self._labels,
            stacks=self._stacks,
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Ends the previous epoch, validation included."""
        memctl_agent.epoch(trainer.current_epoch)
        memctl_agent.phase("train")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begins a step. With accumulated gradients, several batches are one step."""
        if self._step != trainer.global_step:
            self._step = trainer.global_step
            self._range = memctl_agent.step(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The optimizer may have stepped."""
        if self._step != trainer.global_step:
            self._range.end()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins evaluation. This includes the sanity check before training."""
        memctl_agent.phase("eval")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Training continues, if this was within `fit`."""
        if trainer.state.fn == "fit":
            memctl_agent.phase("train")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Evaluation until something else begins."""
        memctl_agent.phase("eval")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Evaluation until something else begins."""
        memctl_agent.phase("eval")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the open step. The steps of another `fit` start over."""
        self._range.end()
        self._step = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The session ends as failed."""
        memctl_agent.detach(describe(exception))
