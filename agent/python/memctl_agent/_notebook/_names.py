"""Names lines of code as a notebook's user knows them: `Cell In[3], line 4`.

IPython runs a cell under the name of a file, or as `<ipython-input-3-…>`. Its compiler knows the number of the cell.
Guarantees: a name that is not a cell's stays a file's name. Nothing raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from memctl_agent._usage import _trace

# Number of cells of an old IPython that are named.
CELLS_MAX = 300

_NUMBER = re.compile(re.escape(_trace.CELL) + r"(\d+)-")


@dataclass(frozen=True)
class Place:
    """The line of the measured cell under which a block was allocated, and the block's site. They are the same if the
    cell itself allocated it."""

    line: Optional[int]
    site: _trace.Site


class Names:
    """The names of cells of one shell. `number` is that of the cell that is measured."""

    def __init__(self, shell: Any, number: int) -> None:
        self._shell, self._number = shell, number
        self._known: dict[str, Optional[int]] = {}
        self._history: Optional[dict[str, int]] = None

    def cell(self, file: str) -> Optional[int]:
        """The number of the cell that has this name; None if no cell has it."""
        if file not in self._known:
            self._known[file] = self._find(file)
        return self._known[file]

    def _find(self, file: str) -> Optional[int]:
        match = _NUMBER.match(file)
        if match:
            return int(match.group(1))
        names = getattr(getattr(self._shell, "compile", None), "_filename_map", None)
        if names is None:
            # IPython before version 8, as in Colab.
            self._history = names = self._named_again() if self._history is None else self._history
        found = names.get(file)
        return found if isinstance(found, int) else None

    def _named_again(self) -> dict[str, int]:
        """The names of the last cells, made again as the compiler made them from their texts."""
        try:
            name, texts = self._shell.compile.get_code_name, self._shell.history_manager.input_hist_raw
            last = range(max(0, len(texts) - CELLS_MAX), len(texts))
            return {name(texts[number], texts[number], number): number for number in last}
        except Exception:
            # Another kind of shell: the name of the file has to do.
            return {}

    def place(self, frames: Sequence[dict[str, Any]]) -> Place:
        """The place of a block, from its frames, innermost first."""
        lines = (int(frame["line"]) for frame in frames if self.cell(frame["filename"]) == self._number)
        return Place(next(lines, None), _trace.site_of(frames))

    def label(self, place: Place) -> str:
        """A place for people: `Cell In[3], line 4`, and where the block was allocated if that is elsewhere."""
        here = "" if place.line is None else f"Cell In[{self._number}], line {place.line}"
        if place.site is None:
            there = _trace.label(None, "")
        else:
            file, line, function = place.site
            number = self.cell(file)
            # (A cell has no function. Versions of IPython name it `<module>` or `<cell line: 1>`.)
            within = "" if function.startswith("<") else f" in {function}"
            if number is None:
                there = _trace.label((file, line, function), os.getcwd())
            elif here and number == self._number and line == place.line and not within:
                return here
            else:
                there = f"Cell In[{number}], line {line}{within}"
                if number == self._number and line == place.line:
                    # A line of a function of this cell, which the cell itself has called.
                    return there
        return f"{here}: {there}" if here else there
