"""The machine that the figures were taken on."""

import os
import platform

from broadleaf.text import size

#: How turns are kept apart if namespaces are permitted.
ISOLATED = "network and process namespace, loopback only"


def facts(isolation: str) -> dict[str, object]:
    """The machine, the interpreter and how the runs are kept apart, as flat values."""
    return {
        "processor": _first_line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": size(int(_first_line("/proc/meminfo", "MemTotal").split()[0]) << 10),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.2f}",
        "isolation": isolation,
    }


def line(known: dict[str, object]) -> str:
    return "machine: " + ", ".join(f"{name} {value}" for name, value in known.items())


def _first_line(path: str, name: str) -> str:
    with open(path) as f:
        return next((text.split(":", 1)[1].strip() for text in f if text.startswith(name)), "0 unknown")
