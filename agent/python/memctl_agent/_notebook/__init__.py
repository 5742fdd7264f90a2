"""memctl in a notebook: `%load_ext memctl_agent`, `%%memctl`, `%memctl`, and `memctl_agent.show()`.

`_cells` measures cells and has the magic, `_names` names lines of cells, `_view` writes HTML and text, `_report` shows
a job's report. The package `_usage` measures, and the pytest plugin shares it.
Guarantees: importing this imports neither IPython nor torch. A cell's result, its output and its exception stay as they
are without memctl. No object of the program is kept.
"""

from __future__ import annotations

from typing import Any


def load(shell: Any) -> None:
    """Registers the magic with IPython's shell."""
    from memctl_agent._notebook._cells import load

    load(shell)


def unload(shell: Any) -> None:
    """Removes the magic."""
    from memctl_agent._notebook._cells import unload

    unload(shell)
