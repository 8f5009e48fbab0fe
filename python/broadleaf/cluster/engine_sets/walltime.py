"""How long a job may run, as people write it and as schedulers take it."""

from __future__ import annotations

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def clock_time(walltime: str) -> str:
    """``"90s"``, ``"30m"``, ``"2h"`` and ``"1d"`` as hours, minutes and seconds; all else as it is given."""
    number, unit = walltime[:-1], walltime[-1:]
    if unit not in _UNITS_S or not number.isdigit():
        return walltime
    seconds = int(number) * _UNITS_S[unit]
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
