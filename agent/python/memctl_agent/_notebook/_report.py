"""Shows a job's report in the notebook.

The report is the file that `memctl report` writes: one HTML document that loads nothing. It is shown in a frame that
cannot reach the notebook. Guarantees: nothing raises because of the job, the daemon or the program `memctl`. The cell
waits at most `LIMIT_S`.
"""

from __future__ import annotations

import shlex
import sys
from typing import Any, Optional

from memctl_agent import _command
from memctl_agent._notebook._view import Page, View, show

# How long the report may take, and how long the cell waits for the daemon to store what was recorded, in seconds.
LIMIT_S = 120.0
SETTLE_S = 3.0


def show_report(job: Optional[str], height: int) -> None:
    """Displays the report of a job, or the reason why there is none."""
    _display(_page(job, height))


def _page(job: Optional[str], height: int) -> object:
    try:
        name = _command.own_job() if job is None else job
        if job is None:
            _command.settle(SETTLE_S)
        document = _command.ask("report", name, limit_s=LIMIT_S)
    except _command.Refusal as refusal:
        return View(f"no report: {refusal}")
    place = " ".join(map(shlex.quote, [name, *_command.connection_flags()]))
    text = f"memctl: the report about job {name}; in a terminal, `memctl diagnose {place}` prints it"
    return Page(document, f"GPU memory report about job {name}", max(100, int(height)), text)


def _display(view: Any) -> None:
    """In a notebook, displays the view. Elsewhere, prints its text."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        show(view)
    else:
        print(view)
