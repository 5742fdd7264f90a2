"""Reads the markers `limit_gpu_memory` and `limit_gpu_leaks`, and amounts of memory in them.

Guarantees: a marker with a bad value is a usage error that names the marker and the accepted forms.
Refuses: texts without a unit, negative amounts, and arguments that the markers do not have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Optional

import pytest  # pyright: ignore[reportMissingImports]

MEMORY = "limit_gpu_memory"
LEAKS = "limit_gpu_leaks"
# How often a test's body runs before the run that is compared, unless the marker says otherwise. The first run fills
# caches such as cuBLAS's workspace, the second one what the first run prepared, such as an optimizer's state.
WARMUPS = 2
WARMUPS_MAX = 1_000

FORMS = 'accepted are "2 GiB", "64 KiB", "1.5 GB", "500 MB", "512 B" and a number of bytes as an int'

_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?b|b)\s*", re.IGNORECASE)
_PREFIXES = "bkmgt"
_BYTES_MAX = 1 << 63


@dataclass(frozen=True)
class Limits:
    """What a test's markers ask for. A limit that is absent is None."""

    memory: Optional[int] = None
    leaks: Optional[int] = None
    warmups: int = 0

    @property
    def are_any(self) -> bool:
        """Whether there is a limit at all."""
        return self.memory is not None or self.leaks is not None


def amount(value: object) -> int:
    """The bytes of a marker's value. Raises `ValueError` for other forms than `FORMS`."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < _BYTES_MAX:
            return value
    elif isinstance(value, str):
        found = _AMOUNT.fullmatch(value)
        if found:
            number, unit = found.group(1), found.group(2).lower()
            factor = (1024 if "i" in unit else 1000) ** _PREFIXES.index(unit[0])
            bytes_ = int(number) * factor if number.isdecimal() else round(float(number) * factor)
            if bytes_ < _BYTES_MAX:
                return bytes_
    raise ValueError(f"{value!r} is not an amount of memory; {FORMS}")


def limits_of(item: Any) -> Limits:
    """The limits of a test. The marker that is closest to it counts. Raises `pytest.UsageError`."""
    memory, leaks = item.get_closest_marker(MEMORY), item.get_closest_marker(LEAKS)
    if memory is None and leaks is None:
        return Limits()
    limit = None if memory is None else _limit(item, memory, ())
    if leaks is None:
        return Limits(limit)
    return Limits(limit, _limit(item, leaks, ("warmups",)), _warmups(item, leaks))


def _limit(item: Any, marker: Any, others: tuple[str, ...]) -> int:
    allowed = ("limit", *others)
    values = dict(zip(allowed, marker.args))
    strange = [name for name in marker.kwargs if name not in allowed or name in values]
    values.update(marker.kwargs)
    if len(marker.args) > len(allowed) or strange or "limit" not in values:
        signature = "(limit, warmups=2)" if others else "(limit)"
        raise _usage(item, marker.name, f"its arguments are {signature}; {FORMS}")
    try:
        return amount(values["limit"])
    except ValueError as error:
        raise _usage(item, marker.name, str(error)) from None


def _warmups(item: Any, marker: Any) -> int:
    value = marker.args[1] if len(marker.args) > 1 else marker.kwargs.get("warmups", WARMUPS)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= WARMUPS_MAX:
        raise _usage(item, marker.name, f"warmups is a number of runs from 0 to {WARMUPS_MAX:,}, not {value!r}")
    return value


def _usage(item: Any, name: str, text: str) -> Exception:
    return pytest.UsageError(f"@pytest.mark.{name} of {item.nodeid}: {text}")
