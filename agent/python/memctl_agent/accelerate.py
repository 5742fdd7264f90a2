"""For Accelerate: `Accelerator(log_with=[MemctlTracker(job="...")])`, then `accelerator.init_trackers(...)`.

The tracker attaches in every process when the trackers start. It notes what the program logs, so that the program's
numbers appear on memctl's time line. The session ends with `accelerator.end_training()`. Epochs, steps and phases come
from the automatic marks, because Accelerate leaves the loop to the program.
Guarantees: like the rest of this package, it raises nothing into training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from accelerate.tracking import GeneralTracker  # pyright: ignore[reportMissingImports]

import memctl_agent

__all__ = ["MemctlTracker"]


class MemctlTracker(GeneralTracker):
    """Attaches memctl. Arguments are those of `memctl_agent.attach`."""

    name = "memctl"
    requires_logging_directory = False
    # Each rank has its own memory.
    main_process_only = False

    def __init__(
        self,
        job: Optional[str] = None,
        *,
        daemon: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        stacks: bool = True,
    ) -> None:
        super().__init__()
        self._job, self._daemon, self._labels, self._stacks = job, daemon, labels, stacks

    @property
    def tracker(self) -> dict[str, object]:
        """memctl's status."""
        return memctl_agent.status()

    def start(self) -> None:
        """Attaches; an existing session continues."""
        memctl_agent.attach(self._job, daemon=self._daemon, labels=self._labels, stacks=self._stacks)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Notes the program's configuration. (Versions before `start` existed begin here.)"""
        self.start()
        memctl_agent.note("config " + _shown(values))

    def log(self, values: dict[str, Any], step: Optional[int] = None, **kwargs: Any) -> None:
        """Notes that something was logged, by the program's own step."""
        memctl_agent.note(f"log {_shown(values)}" if step is None else f"log at step {step} {_shown(values)}")

    def finish(self) -> None:
        """Ends the session."""
        memctl_agent.detach()


def _shown(values: Mapping[str, Any]) -> str:
    """The plain values as a text. A tensor's text would wait for the device, so tensors are left out."""
    plain = (f"{name}={value}" for name, value in values.items() if isinstance(value, (bool, int, float, str)))
    return " ".join(plain)
