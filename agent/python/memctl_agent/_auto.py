"""Attaches for `memctl run`, without a change in the script. It is called when torch has been imported.

Guarantees: all settings come from the environment. Nothing starts before the program initialises CUDA. If a program
never initialises CUDA, there is no session and no message.
"""

from __future__ import annotations

import os

from memctl_agent import _session


def arm() -> bool:
    """Prepares to attach as soon as CUDA is initialised. Returns whether this was possible."""
    names = ("job", "daemon", "rank", "world_size", "attempt", "role")
    wanted = {**dict.fromkeys(names), "labels": {}}
    stacks = os.environ.get("MEMCTL_STACKS", "1") != "0"
    try:
        return _session.SESSION.attach(wanted, stacks=stacks, auto=True, quiet=True)
    except Exception as error:
        _session.say(f"could not attach: {type(error).__name__}: {error}")
        return False
