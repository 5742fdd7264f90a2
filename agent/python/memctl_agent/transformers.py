"""For the Hugging Face trainer: `Trainer(..., callbacks=[MemctlCallback(job="...")])`.

The callback attaches on every rank when training begins, and marks epochs, optimizer steps and evaluation with the
trainer's own numbers. An exception that ends the program becomes the session's failure.
Guarantees: like the rest of this package, it raises nothing into training. It never changes `control`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

import memctl_agent

__all__ = ["MemctlCallback"]


class MemctlCallback(TrainerCallback):  # pyright: ignore[reportGeneralTypeIssues]
    """Attaches memctl and marks what the trainer does. Arguments are those of `memctl_agent.attach`.

    Without a job the trainer's `run_name` names it, if one was given.
    """

    def __init__(
        self,
        job: Optional[str] = None,
        *,
        daemon: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        stacks: bool = True,
    ) -> None:
        self._job, self._daemon, self._labels, self._stacks = job, daemon, labels, stacks
        self._step = memctl_agent.Range()
        self._trains = self._evaluates = False

    def _attach(self, args: Any) -> None:
        name = getattr(args, "run_name", None)
        # Some versions fill in the output folder, which is not a job's name.
        named = name if name and name != getattr(args, "output_dir", None) else None
        memctl_agent.attach(self._job or named, daemon=self._daemon, labels=self._labels, stacks=self._stacks)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attaches; an existing session continues."""
        self._attach(args)
        self._trains = True
        memctl_agent.phase("train")

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins an epoch. The trainer counts epochs in fractions. The number here is whole, or it is that of a
        checkpoint."""
        memctl_agent.epoch(int(state.epoch or 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins a step. This is called once per optimizer step, even if the step accumulates several batches."""
        self._step = memctl_agent.step(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        self._step.end()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of an evaluation or a prediction. The first one begins it, because there is no callback for the
        begin."""
        if not self._evaluates:
            self._evaluates = True
            self._attach(args)
            memctl_agent.phase("eval")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over."""
        self._evaluated()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """A prediction is over."""
        self._evaluated()

    def _evaluated(self) -> None:
        self._evaluates = False
        if self._trains:
            memctl_agent.phase("train")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the open step, because later work is not a step."""
        self._step.end()
        self._trains = False
