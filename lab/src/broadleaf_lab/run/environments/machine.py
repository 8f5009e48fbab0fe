"""The machine that runs are made on: its name, and how quiet it is."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CPUFREQ = "/sys/devices/system/cpu/cpu{cpu}/cpufreq/{what}"


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Processor time of the whole machine since it started, in clock ticks summed over its cores."""

    busy: int
    steal: int
    total: int

    def since(self, before: CpuTimes) -> tuple[float, float]:
        """Shares of busy and stolen time since `before`, 0 to 1."""
        span = max(1, self.total - before.total)
        return (self.busy - before.busy) / span, (self.steal - before.steal) / span


def cpu_times() -> CpuTimes:
    """Processor times now."""
    try:
        with open("/proc/stat") as f:
            user, nice, system, idle, iowait, irq, softirq, steal = (int(v) for v in f.readline().split()[1:9])
    except (OSError, ValueError):
        return CpuTimes(0, 0, 0)
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy, steal, busy + idle + iowait + steal)


_SAMPLE_S = 0.1
_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Energy:
    """The counters of the processor packages, if this machine has them and lets this user read them: microjoules by
    package, and the value at which each wraps around. They count everything that the machine does, including idling.
    """

    counted_uj: Mapping[str, int]
    range_uj: Mapping[str, int]

    @classmethod
    def now(cls) -> Energy:
        """The counters as they stand."""
        counted, top = {}, {}
        # intel-rapl:0 is a package, also on AMD processors; intel-rapl:0:1 is a part of it.
        for zone in sorted(_POWERCAP.glob("intel-rapl:*")):
            if zone.name.count(":") == 1 and (text := read_text(str(zone / "energy_uj"))):
                counted[zone.name] = int(text)
                top[zone.name] = int(read_text(str(zone / "max_energy_range_uj")) or 0)
        return cls(counted, top)

    def used_uj(self, later: Energy) -> int | None:
        """The energy used until `later`; None if nothing is counted."""
        if not self.counted_uj or self.counted_uj.keys() != later.counted_uj.keys():
            return None
        used = 0
        for zone, before in self.counted_uj.items():
            after = later.counted_uj[zone]
            used += after - before if after >= before else after - before + self.range_uj[zone]
        return used


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def load1() -> float:
    """Processes that were running or waiting to, averaged over a minute."""
    return os.getloadavg()[0]


def cpu_mhz() -> float | None:
    """Mean clock of the usable cores, or None if unknown."""
    clocks = []
    for cpu in sorted(os.sched_getaffinity(0)):
        text = read_text(_CPUFREQ.format(cpu=cpu, what="scaling_cur_freq"))
        if text:
            clocks.append(int(text) / 1000)
    if not clocks:
        clocks = [float(value) for value in _cpuinfo("cpu MHz")]
    return sum(clocks) / len(clocks) if clocks else None


def temperature_c() -> float | None:
    """The warmest sensor, or None where there is none."""
    found = []
    for pattern in ("class/thermal/thermal_zone*/temp", "class/hwmon/hwmon*/temp*_input"):
        for path in Path("/sys").glob(pattern):
            try:
                found.append(int(path.read_text()) / 1000)
            except (OSError, ValueError):
                continue
    return max(found, default=None)


def memory_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_model() -> str:
    """The processor's name."""
    return next(iter(_cpuinfo("model name")), platform.machine())


@cache
def machine_id() -> str:
    """`m` and eight hex digits: runs with different ones must not be compared."""
    text = "\0".join((platform.node(), cpu_model(), str(os.cpu_count()), str(memory_bytes() >> 28)))
    return "m" + hashlib.sha256(text.encode()).hexdigest()[:8]


def busy_cores() -> float:
    """Cores that are busy at the moment. Measured between runs, when nothing of ours is running: the load average would
    not work, because it includes our own last run for a minute.
    """
    before = cpu_times()
    time.sleep(_SAMPLE_S)
    busy, steal = cpu_times().since(before)
    return (busy + steal) * (os.cpu_count() or 1)


def wait_until_quiet(
    limit_cores: float,
    max_wait_s: float,
    measure: Callable[[], float] = busy_cores,
    on_busy: Callable[[float], None] = lambda cores: None,
) -> bool:
    """Waits until fewer than `limit_cores` are busy, at most `max_wait_s`; returns whether that happened. `on_busy`
    gets the busy cores immediately if there is something to wait for.
    """
    deadline = time.monotonic() + max_wait_s
    told = False
    while (cores := measure()) > limit_cores:
        if not told:
            on_busy(cores)
            told = True
        if time.monotonic() >= deadline:
            return False
    return True


def _cpuinfo(name: str) -> list[str]:
    text = read_text("/proc/cpuinfo")
    return [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith(name)]


def read_text(path: str) -> str:
    """A small file from the kernel, or nothing if it does not exist."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
