"""Times with their time zone, and how messages hold them as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

utc = UTC
_ISO_8601 = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}.*")


def utcnow() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def ensure_timezone(moment: datetime) -> datetime:
    """`moment` with a time zone: the local one, if it has none."""
    return moment.astimezone() if moment.tzinfo is None else moment


def compare_datetimes(a: datetime, b: datetime) -> int:
    """-1, 0 or 1 as `a` is before, at or after `b`; a time without a zone is local."""
    a, b = ensure_timezone(a), ensure_timezone(b)
    return (a > b) - (a < b)


def extract_dates(value: Any) -> Any:
    """`value` with every text that is an ISO 8601 time converted to a time."""
    if isinstance(value, dict):
        return {key: extract_dates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [extract_dates(item) for item in value]
    if isinstance(value, str) and _ISO_8601.fullmatch(value):
        try:
            return ensure_timezone(datetime.fromisoformat(value))
        except ValueError:
            return value
    return value
