"""Signals as users name them."""

from __future__ import annotations

import signal


def signal_number(sig: int | str) -> int:
    """The number of a signal given by number or name: 2, '2', 'SIGINT'; 0 is none. Raises `ValueError`."""
    text = str(int(sig) if isinstance(sig, int) else sig)
    if text.isdigit():
        number = int(text)
        if number == 0 or number in signal.valid_signals():
            return number
    elif text.upper() in signal.Signals.__members__:
        return int(signal.Signals[text.upper()])
    raise ValueError(f"{sig!r} is not a signal: use a number, or a name such as 'SIGINT'")
