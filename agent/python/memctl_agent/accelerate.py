"""For Accelerate: `Accelerator(log_with=[MemctlTracker(job="...")])`, then `accelerator.init_trackers(...)`.

When the trackers start, this tracker attaches in every process. It records the values that the program logs as notes,
so that they appear on memctl's timeline. The session ends with `accelerator.end_training()`. Epochs, steps and phases
come from the automatic marks, because with Accelerate the loop is the program's own.
Guarantees: like the rest of this package, it raises nothing into the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from accelerate.tracking import GeneralTracker  # pyright: ignore[reportMissingImports]

import memctl_agent

__all__ = ["MemctlTracker"]


class MemctlTracker(GeneralTracker):
    """Attaches memctl. The arguments are those of `memctl_agent.attach`."""

    name = "memctl"
    requires_logging_directory = False
    # All processes need a tracker, because each rank has its own memory.
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
        """Attaches. If there is a session, it continues."""
        memctl_agent.attach(self._job, daemon=self._daemon, labels=self._labels, stacks=self._stacks)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Records the program's configuration as a note. Attaches first, because old versions of Accelerate do not call
        `start`."""
        self.start()
        memctl_agent.note("config " + _shown(values))

    def log(self, values: dict[str, Any], step: Optional[int] = None, **kwargs: Any) -> None:
        """Records the logged values as a note, with the program's own step number if there is one."""
        memctl_agent.note(f"log {_shown(values)}" if step is None else f"log at step {step} {_shown(values)}")

    def finish(self) -> None:
        """Ends the session."""
        memctl_agent.detach()


def _shown(values: Mapping[str, Any]) -> str:
    """The plain values as text. Tensors are left out, because reading a tensor's value would wait for the device."""
    plain = (f"{name}={value}" for name, value in values.items() if isinstance(value, (bool, int, float, str)))
    return " ".join(plain)
