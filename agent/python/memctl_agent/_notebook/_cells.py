"""Measures cells, and the magic `%%memctl` and `%memctl`.

The line `%%memctl` becomes an empty comment before IPython compiles the cell, so the cell runs as ever: with its own
line numbers, its own output, `await`, and its own exception. IPython calls this module before and after each cell.
Guarantees: an error of memctl is one sentence, and the cell runs. No reference to the program's objects stays.
Refuses: `%%memctl` below the first line.
"""

from __future__ import annotations

import gc
import shlex
import sys
from typing import Any, Optional

from memctl_agent import _torch
from memctl_agent._holders import _outputs
from memctl_agent._notebook._names import Names, Place
from memctl_agent._notebook._view import Row, View, show
from memctl_agent._usage import _trace
from memctl_agent._usage._amounts import human
from memctl_agent._usage._held import holders
from memctl_agent._usage._history import History

MAGIC = "%%memctl"
# Lines that are listed unless the option says otherwise.
LINES = 8
# How long the search for the holders of a line's blocks may take, in milliseconds.
BUDGET_MS = 400.0

HELP = (
    "%%memctl, the first line of a cell: show the cell's GPU memory after the cell",
    f"%%memctl --lines N: list the N lines that left the most ({LINES})",
    "%memctl: show the state, which is the recording and this process's GPU memory",
    "%memctl on, %memctl off: measure every cell from the next one on, or stop that",
    "%memctl clear: let the notebook forget the outputs of its cells (Out, _, _5) and the last exception",
)


class Cells:
    """The magic of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._history = History("cell")
        self._is_always = False
        # Of the cell that is measured: how many lines are listed, and the bytes that were allocated before.
        self._open: Optional[tuple[int, int]] = None

    # -- the magic -----------------------------------------------------------------------------------------------

    def without_magic(self, lines: list[str]) -> list[str]:
        """The lines of a cell without `%%memctl`. The other lines keep their numbers, unless another magic follows: it
        must be the first line."""
        if not lines or not _is_magic(lines[0]):
            return lines
        if len(lines) > 1 and lines[1].startswith("%%"):
            return lines[1:]
        return ["#\n", *lines[1:]]

    def magic(self, line: str, cell: Optional[str] = None) -> None:
        """Measure the GPU memory of a cell (`%%memctl`), or show the state (`%memctl`); `%memctl help` lists all."""
        if cell is not None:
            # A program calls the magic by its name.
            self._shell.run_cell(f"{MAGIC} {line}\n{cell}").raise_error()
            return
        word = line.strip()
        if word in ("on", "off"):
            self._is_always = word == "on"
            show(
                View("every cell is measured from the next one on" if word == "on" else "cells are no longer measured")
            )
        elif word == "clear":
            show(self._cleared())
        elif word:
            show(View("the magic's forms:", notes=list(HELP)))
        else:
            show(self._state())

    def _cleared(self) -> View:
        """Lets IPython forget the outputs and the last exception."""
        before, shell = _allocated(), self._shell
        if shell.displayhook.do_full_cache:
            shell.displayhook.flush()
        hidden = shell.user_ns_hidden
        for name in filter(_outputs.is_name, list(hidden)):
            # `flush` leaves the last outputs there (all of them before version 8), and then `_` would no longer be set.
            hidden[name] = shell.user_ns.get(name)
        shell.last_execution_result = None
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        if getattr(shell.InteractiveTB, "tb", None) is not None:
            shell.InteractiveTB.tb = None
        gc.collect()
        return View(f"the output history and the last exception are cleared; {human(before - _allocated())} were freed")

    def _state(self) -> View:
        from memctl_agent._session import SESSION

        status = SESSION.status()
        if status["attached"]:
            sentence = f"this process is recorded as job {status['job']}"
        elif status["state"] == "armed":
            sentence = "recording begins when CUDA is initialised"
        else:
            sentence = "this process is not recorded; `memctl_agent.attach()` begins a recording"
        view = View(f"{sentence}; {'every cell is' if self._is_always else 'cells with %%memctl are'} measured")
        torch = sys.modules.get("torch")
        if torch is not None and _torch.has_cuda(torch) and torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                level, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
                peak = torch.cuda.max_memory_allocated(device)
                text = f"{human(level)} allocated, {human(reserved)} reserved, peak {human(peak)}"
                view.figures.append((f"cuda:{device}", text))
        else:
            view.notes.append("CUDA is not in use in this process.")
        return view

    # -- around a cell -------------------------------------------------------------------------------------------

    def before(self, info: Any) -> None:
        """IPython is about to run a cell."""
        try:
            self._begin(str(getattr(info, "raw_cell", "") or ""))
        except Exception as fault:
            self._failed(fault)

    def _begin(self, text: str) -> None:
        lines = text.lstrip("\n").splitlines()
        is_asked = bool(lines) and _is_magic(lines[0].strip())
        if not is_asked and any(map(_is_magic, lines)):
            show(View(f"`{MAGIC}` has an effect only as the first line of a cell"))
        if not is_asked and not self._is_always:
            return
        if self._open is not None and not is_asked:
            # A cell that the measured one runs is part of it.
            return
        count = _count(lines[0]) if is_asked else LINES
        self._history.begin(may_import=is_asked)
        self._open = count, _allocated()

    def after(self, result: Any) -> None:
        """IPython has run a cell."""
        if self._open is None:
            return
        (count, before), self._open = self._open, None
        try:
            number = int(getattr(result, "execution_count", None) or self._shell.execution_count)
            has_run = getattr(result, "error_before_exec", None) is None
            view = self._measured(number, count, before) if has_run else None
        except Exception as fault:
            self._failed(fault)
            view = None
        finally:
            self._history.end()
        if view is not None:
            show(view)

    def _failed(self, fault: Exception) -> None:
        self._open = None
        self._history.end()
        show(View(f"the cell was not measured: a fault of memctl ({type(fault).__name__}: {fault})"))

    def _measured(self, number: int, count: int, before: int) -> Optional[View]:
        found = self._history.read()
        reason = self._history.why_nothing()
        if found is None or reason:
            if self._is_always and not reason:
                return None
            return View(f"the cell was not measured: {reason}" if reason else "the cell used no GPU memory")
        names = Names(self._shell, number)
        used = _trace.usage(found["device_traces"], site=names.place)
        if not used.events and self._is_always:
            return None
        now = _allocated()
        view = View(_sentence(number, used, len(used.live)))
        view.figures = [
            ("allocated before the cell", human(before)),
            ("most at once, with what was there before", human(max(now, before + _trace.rise(found["device_traces"])))),
            ("allocated after the cell", human(now)),
        ]
        lines = _trace.lines_of(used.live.values())
        at = _by_place(used.live, found["segments"])
        for line in lines[:count]:
            place: Any = line.site
            texts = holders(at.get(place, []), "__main__", BUDGET_MS)
            view.rows.append(Row(human(line.bytes_), line.blocks, names.label(place), texts))
        rest = lines[count:]
        if rest:
            left = human(sum(line.bytes_ for line in rest))
            view.notes.append(f"{left} of {len(rest)} other lines: `{MAGIC} --lines {len(lines)}` lists them")
        if not lines and used.at_peak:
            place = used.at_peak[0].site
            view.notes.append(f"The most at the peak: {human(used.at_peak[0].bytes_)}, {names.label(place)}")  # type: ignore[arg-type]
        return view


def _is_magic(line: str) -> bool:
    return line.split(maxsplit=1)[:1] == [MAGIC]


def _count(line: str) -> int:
    """The option of the first line of a cell. A line that is not understood is answered with the forms."""
    words = line.split()[1:]
    if not words:
        return LINES
    if len(words) == 2 and words[0] == "--lines" and words[1].isdecimal():
        return int(words[1])
    show(View(f"`{shlex.join(words)}` is no option; the cell is measured. The magic's forms:", notes=list(HELP)))
    return LINES


def _allocated() -> int:
    """The bytes that PyTorch's allocator has allocated now, on all devices."""
    torch = sys.modules.get("torch")
    if torch is None or not _torch.has_cuda(torch) or not torch.cuda.is_initialized():
        return 0
    return sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))


def _sentence(number: int, used: _trace.Usage, left: int) -> str:
    what = f"Cell In[{number}] allocated {human(used.peak)} at its peak"
    if not used.peak:
        return f"Cell In[{number}] allocated no GPU memory"
    if not left:
        return f"{what}; nothing of it stayed alive"
    return f"{what}; {human(used.allocated)} in {left:,} block{'s' * (left != 1)} stayed alive after it"


def _by_place(live: dict[_trace.Key, tuple[int, Any]], segments: Any) -> dict[Place, list[tuple[int, int]]]:
    """The address and the size of each live block, by place, for the search for holders."""
    sizes = {key: size for key, (_, size, _) in _trace.blocks_of(segments).items()}
    found: dict[Place, list[tuple[int, int]]] = {}
    for key, (bytes_, place) in live.items():
        found.setdefault(place, []).append((key[1], sizes.get(key, bytes_)))
    return found


# -- IPython's hooks ---------------------------------------------------------------------------------------------

_NAME = "memctl"


def load(shell: Any) -> None:
    """Registers the magic. A second call replaces the first one's."""
    unload(shell)
    cells = Cells(shell)
    shell.register_magic_function(cells.magic, magic_kind="line_cell", magic_name=_NAME)
    shell.input_transformers_cleanup.append(cells.without_magic)
    shell.events.register("pre_run_cell", cells.before)
    shell.events.register("post_run_cell", cells.after)


def unload(shell: Any) -> None:
    """Removes the magic, if it is there."""
    magics = shell.magics_manager.magics
    cells = getattr(magics["line"].get(_NAME), "__self__", None)
    if not isinstance(cells, Cells):
        return
    for kind in ("line", "cell"):
        magics[kind].pop(_NAME, None)
    shell.input_transformers_cleanup.remove(cells.without_magic)
    shell.events.unregister("pre_run_cell", cells.before)
    shell.events.unregister("post_run_cell", cells.after)
