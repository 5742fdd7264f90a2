"""How `memctl run` attaches without a line in the script: called when torch has been imported.

Guarantees: all settings come from the environment; nothing starts before the program initialises CUDA; a program that
never does is left alone without a message.
"""

from __future__ import annotations

import os

from memctl_agent import _session


def arm() -> bool:
    """Attaches as soon as CUDA is initialised; returns whether that was arranged."""
    names = ("job", "daemon", "rank", "world_size", "attempt", "role")
    wanted = {**dict.fromkeys(names), "labels": {}}
    stacks = os.environ.get("MEMCTL_STACKS", "1") != "0"
    try:
        return _session.SESSION.attach(wanted, stacks=stacks, auto=True, quiet=True)
    except Exception as error:
        _session.say(f"could not attach: {type(error).__name__}: {error}")
        return False
