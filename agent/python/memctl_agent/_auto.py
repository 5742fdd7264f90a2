"""Attaches for `memctl run` without a line in the script. It is called when torch has been imported.

Guarantees: all settings come from the environment. Nothing starts before the program initialises CUDA. A program that
never does is left alone, without a message.
"""

from __future__ import annotations

import os

from memctl_agent import _session


def arm() -> bool:
    """Arranges to attach as soon as CUDA is initialised. Returns whether that was possible."""
    names = ("job", "daemon", "rank", "world_size", "attempt", "role")
    wanted = {**dict.fromkeys(names), "labels": {}}
    stacks = os.environ.get("MEMCTL_STACKS", "1") != "0"
    try:
        return _session.SESSION.attach(wanted, stacks=stacks, auto=True, quiet=True)
    except Exception as error:
        _session.say(f"could not attach: {type(error).__name__}: {error}")
        return False
