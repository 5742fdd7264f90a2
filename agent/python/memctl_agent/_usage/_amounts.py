"""Writes amounts of memory for people.

Guarantees: the same amount gives the same text.
"""

from __future__ import annotations


def human(bytes_: int) -> str:
    """An amount for people: `2.0 MiB`, `512 B`."""
    if abs(bytes_) < 1024:
        return f"{bytes_} B"
    value = float(bytes_)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if abs(value) < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def exactly(bytes_: int) -> str:
    """An amount for people, and its bytes where they are not the same."""
    return f"{bytes_} B" if abs(bytes_) < 1024 else f"{human(bytes_)} ({bytes_:,} bytes)"
