"""Recognises the output history of IPython: the value of a cell's last line stays in `Out`, and in `_`, `__`, `_5`.

Guarantees: none of the program's code runs, and nothing is changed. Without IPython, and for a program that uses the
names `_` and `_5` itself, there is no output history.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any, Optional

from memctl_agent._holders import _reading

# What the history's sentence ends with. (`%reset -f out` leaves the last three outputs in IPython's hidden namespace.)
REMEDY = "`%memctl clear` empties it, and `;` at the end of a cell keeps the value out of it"
EXCEPTION_REMEDY = "the notebook's last exception; `%memctl clear` forgets it"
# Where Python and IPython keep the last exception and its traceback.
LAST_EXCEPTION = ("last_exc", "last_value", "last_traceback", "tb")
PHRASE = "the notebook's output history"
# IPython's dict of the names that it has added to the namespace by itself.
HIDDEN = "user_ns_hidden"

_NAME = re.compile(r"_{1,3}|_[0-9]+")
# Number of outputs and of variables that are read. IPython keeps 1,000 outputs.
READ_MAX = 10_000


def namespace() -> Optional[dict[str, Any]]:
    """The variables of the notebook; None if the program is none."""
    if "IPython" not in sys.modules:
        return None
    found = _reading.module_dict(dict.get(sys.modules, "__main__"))
    return found if found is not None and type(dict.get(found, "_oh")) is dict else None


def is_name(name: str) -> bool:
    """Whether IPython uses this name for an output."""
    return _NAME.fullmatch(name) is not None


def number(variables: dict[str, Any], things: Sequence[Any]) -> Optional[int]:
    """The number of the output that is one of these objects."""
    wanted = set(map(id, things))
    try:
        for key, value in islice(dict.items(variables["_oh"]), READ_MAX):
            if id(value) in wanted and type(key) is int:
                return key
    except RuntimeError:
        # Another thread inserted an item.
        pass
    return None


def own_name(variables: dict[str, Any], thing: Any) -> Optional[str]:
    """The name of the program's own variable that has this value."""
    try:
        for key, value in islice(dict.items(variables), READ_MAX):
            if value is thing and type(key) is str and not key.startswith("_") and key != "Out":
                return _reading.plain(key)
    except RuntimeError:
        # Another thread inserted an item.
        pass
    return None
