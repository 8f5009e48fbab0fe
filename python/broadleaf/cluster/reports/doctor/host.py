"""Whether this host can run engines: its Python, its memory, its limits."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path

from broadleaf import _native
from broadleaf.cluster.hosts.cores import usable_cores
from broadleaf.cluster.reports.doctor.finding import Finding
from broadleaf.text import count, size

_OLDEST_PYTHON = (3, 11)
# Without memfd, everything that engines share has to fit into /dev/shm.
_LITTLE_SHM_BYTES = 64 << 20
# A node uses a few descriptors for each engine and each segment, and reserves an eighth of them.
_FEW_DESCRIPTORS, _TOO_FEW_DESCRIPTORS = 1024, 256


def python() -> Finding:
    """Whether this Python is new enough."""
    version = platform.python_version()
    if sys.version_info[:2] < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        return Finding("Python", "failed", f"{sys.executable} is {version}", f"use Python {oldest} or newer")
    return Finding("Python", "ok", f"{version}, {sys.executable}")


def package() -> Finding:
    """Where Broadleaf is imported from, and what else its engines need."""
    where = Path(_native.__file__).parent
    try:
        import cloudpickle
    except ImportError as error:
        return Finding("Broadleaf", "failed", f"{where}: {error}", f"{sys.executable} -m pip install cloudpickle")
    return Finding("Broadleaf", "ok", f"{_native.__version__}, {where}; cloudpickle {cloudpickle.__version__}")


def memory() -> Finding:
    """Whether arrays can be shared by the engines of this host."""
    try:
        there = os.statvfs("/dev/shm")
        free_bytes = there.f_bavail * there.f_frsize
        known = f"/dev/shm has {size(free_bytes)} free of {size(there.f_blocks * there.f_frsize)}"
    except OSError as error:
        free_bytes, known = 0, f"/dev/shm: {error.strerror}"
    try:
        os.close(os.memfd_create("broadleaf-doctor"))
    except OSError as error:
        found = f"memfd_create fails ({error.strerror}), so arrays lie in /dev/shm; {known}"
        advice = "permit memfd_create (a container's seccomp profile), or make /dev/shm larger (--shm-size)"
        return Finding("memory", "failed" if free_bytes < _LITTLE_SHM_BYTES else "warning", found, advice)
    return Finding("memory", "ok", f"memfd_create works, so the size of /dev/shm does not matter; {known}")


def descriptors() -> Finding:
    """Whether a node here may open as many files as it needs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    engines = count(usable_cores(), "core")
    if hard == resource.RLIM_INFINITY or hard >= _FEW_DESCRIPTORS:
        limit = "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard:,}"
        return Finding("descriptors", "ok", f"{limit}; {engines}")
    return Finding(
        "descriptors",
        "failed" if hard < _TOO_FEW_DESCRIPTORS else "warning",
        f"a process may open {hard:,} files (ulimit -Hn); {engines}",
        f"raise the hard limit to {_FEW_DESCRIPTORS:,} or more: in /etc/security/limits.conf, the service's "
        "LimitNOFILE or the container's --ulimit nofile",
    )
