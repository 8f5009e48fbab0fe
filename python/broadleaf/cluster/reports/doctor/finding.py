"""The outcome of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Result = Literal["ok", "warning", "failed", "not tried"]


@dataclass(frozen=True)
class Finding:
    """One step, and its outcome."""

    step: str
    result: Result
    found: str
    advice: str = ""
    """What to do about it; '' where nothing has to be done."""
