"""How many cores this process may really use, and how many engines are requested."""

import operator
import os
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


def usable_cores(cgroup_root: str = "/sys/fs/cgroup", proc_root: str = "/proc") -> int:
    """Cores of the affinity mask, or fewer if a control group's processor quota allows fewer; at least 1."""
    cores = len(os.sched_getaffinity(0))
    for quota in _quotas(cgroup_root, proc_root):
        cores = min(cores, max(1, int(quota)))
    return cores


def _quotas(cgroup_root: str, proc_root: str) -> list[float]:
    """Cores that each control group above this process allows, if it sets a quota."""
    quotas: list[float] = []
    for line in _text(f"{proc_root}/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            quotas += [_quota_v2(directory) for directory in _upwards(cgroup_root, group)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(directory) for directory in _upwards(f"{cgroup_root}/cpu", group)]
    return [quota for quota in quotas if quota > 0]


def _upwards(root: str, group: str) -> list[str]:
    """The group's directory and all directories above it, any of which may set a quota."""
    found = [root]
    for name in group.strip("/").split("/"):
        found.append(os.path.join(found[-1], name))
    return found


def _quota_v1(directory: str) -> float:
    quota, period = _text(f"{directory}/cpu.cfs_quota_us"), _text(f"{directory}/cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else 0.0


def _quota_v2(directory: str) -> float:
    quota, _, period = _text(f"{directory}/cpu.max").partition(" ")
    return int(quota) / int(period) if period and quota != "max" else 0.0


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
