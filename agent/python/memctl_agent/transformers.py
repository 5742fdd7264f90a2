"""For the Hugging Face trainer: `Trainer(..., callbacks=[MemctlCallback(job="...")])`.

The callback attaches on every rank when the training begins. It marks epochs, optimizer steps and evaluation, with the
trainer's own numbers. If an exception ends the program, the session ends as failed.
Guarantees: like the rest of this package, it raises nothing into the training. It never changes `control`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

import memctl_agent

__all__ = ["MemctlCallback"]


class MemctlCallback(TrainerCallback):  # pyright: ignore[reportGeneralTypeIssues]
    """Attaches memctl and marks the trainer's progress. The arguments are those of `memctl_agent.attach`.

    If no job is given, the trainer's `run_name` is the name of the job, if there is one.
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
        self._epoch = memctl_agent.Range()
        self._trains = self._evaluates = False

    def _attach(self, args: Any) -> None:
        name = getattr(args, "run_name", None)
        # In some versions `run_name` is the output folder by default. This is not a job's name.
        named = name if name and name != getattr(args, "output_dir", None) else None
        memctl_agent.attach(self._job or named, daemon=self._daemon, labels=self._labels, stacks=self._stacks)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attaches. If there is a session, it continues."""
        self._attach(args)
        self._trains = True
        memctl_agent.phase("train")

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins an epoch. `state.epoch` counts epochs in fractions. At this point it is a whole number, or it comes
        from a checkpoint and is truncated."""
        self._epoch = memctl_agent.epoch(int(state.epoch or 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins a step. The trainer calls this once per optimizer step, even if gradients of several batches are
        accumulated."""
        self._step = memctl_agent.step(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the step, because the optimizer has stepped."""
        self._step.end()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins the phase `eval` at the first batch of an evaluation or a prediction, because there is no callback for
        their begin."""
        if not self._evaluates:
            self._evaluates = True
            self._attach(args)
            memctl_agent.phase("eval")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends an evaluation."""
        self._evaluated()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """Ends a prediction."""
        self._evaluated()

    def _evaluated(self) -> None:
        self._evaluates = False
        if self._trains:
            memctl_agent.phase("train")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the open step and the last epoch, because later work belongs to neither."""
        self._step.end()
        self._epoch.end()
        self._trains = False
