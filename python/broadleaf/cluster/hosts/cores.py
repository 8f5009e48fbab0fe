"""How many cores this process may really use, and how many engines are requested."""

import operator
import os
from pathlib import Path
from typing import SupportsIndex


def engine_count(n: SupportsIndex) -> int:
    """`n` as a number of engines. Raises `TypeError` unless it is a whole number, `ValueError` if it is negative."""
    try:
        # Python treats True as an integer; here it is a mistake.
        count = operator.index(n) if not isinstance(n, bool) else None
    except TypeError:
        count = None
    if count is None:
        raise TypeError(f"n, the number of engines, must be an int, not {n!r} ({type(n).__name__})")
    if count < 0:
        raise ValueError(f"n, the number of engines, must not be negative, but is {count}")
    return count


def usable_cores(cgroup_root: Path = Path("/sys/fs/cgroup"), proc_root: Path = Path("/proc")) -> int:
    """Cores of the affinity mask, or fewer if a control group's processor quota allows fewer; at least 1."""
    cores = len(os.sched_getaffinity(0))
    for quota in _quotas(cgroup_root, proc_root):
        cores = min(cores, max(1, int(quota)))
    return cores


def _quotas(cgroup_root: Path, proc_root: Path) -> list[float]:
    """Cores that each control group above this process allows, if it sets a quota."""
    quotas: list[float] = []
    for line in _text(proc_root / "self" / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            quotas += [_quota_v2(directory) for directory in _upwards(cgroup_root, group)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(directory) for directory in _upwards(cgroup_root / "cpu", group)]
    return [quota for quota in quotas if quota > 0]


def _upwards(root: Path, group: str) -> list[Path]:
    """The group's directory and all directories above it, any of which may set a quota."""
    path = root / group.strip("/")
    return [path, *(parent for parent in path.parents if parent.is_relative_to(root))]


def _quota_v1(directory: Path) -> float:
    quota, period = _text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else 0.0


def _quota_v2(directory: Path) -> float:
    quota, _, period = _text(directory / "cpu.max").partition(" ")
    return int(quota) / int(period) if period and quota != "max" else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
