"""Ray on a bed: its head on the head, which runs nothing, and a node of four CPUs on each of some hosts."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bed import Bed
from debian_layer import CHECKOUT
from waiting import until

PYTHON = CHECKOUT / ".ray-venv" / "bin" / "python"
_ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": f"{CHECKOUT / 'python'}:{CHECKOUT / 'tests'}",
    # The loss of a node is noticed soon.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
_OF_RAY = (b"raylet", b"gcs_server", b"ray/", b"ray::")


@contextmanager
def ray_on(bed: Bed, *hosts: str) -> Iterator[None]:
    """Has Ray run meanwhile; the hosts are its nodes, at ``head:6379``."""
    try:
        for name in ("head", *hosts):
            _start(bed, name)
        yield
    finally:
        kill_ray(bed, "head", *hosts)


def _start(bed: Bed, name: str) -> None:
    own = ("--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false")
    other = ("--address=head:6379", "--num-cpus=4")
    command = (str(PYTHON.with_name("ray")), "start", f"--node-ip-address={bed.host(name).address}",
               "--disable-usage-stats", *(own if name == "head" else other))  # fmt: skip
    # `ray start` gives up after 30 s. A busy machine needs longer to read Ray from its disk for the first time.
    first = bed.run(name, *command, check=False, timeout_s=120, **_ENV)
    if first.returncode:
        kill_ray(bed, name)
        bed.run(name, *command, timeout_s=120, **_ENV)


def ray_python(bed: Bed, program: str) -> str:
    """The output of a Python program that runs on the head, with Ray."""
    return bed.run("head", str(PYTHON), "-c", program, timeout_s=200, **_ENV).stdout


def ray_command(bed: Bed, program: str) -> list[str]:
    """A command line that runs a Python program on the head, with Ray."""
    return bed.command("head", [str(PYTHON), "-c", program], _ENV)


def stop_ray(bed: Bed) -> None:
    """Has Ray's own command end Ray. It goes by the table of processes, which is one for all hosts of a bed."""
    bed.run("head", str(PYTHON.with_name("ray")), "stop", timeout_s=120, **_ENV)
    assert until(lambda: not any(_processes(bed, name) for name in bed.names), 60)


def kill_ray(bed: Bed, *hosts: str) -> None:
    """Kills Ray's processes on these hosts, as in a power failure, except for what Ray has started there for others."""
    for name in hosts:
        for pid in _processes(bed, name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert until(lambda name=name: not _processes(bed, name)), _processes(bed, name)


def _processes(bed: Bed, name: str) -> list[int]:
    network = os.stat(f"/run/netns/{bed.host(name).namespace}").st_ino
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes()
            if os.stat(path / "ns/net").st_ino == network and any(word in line for word in _OF_RAY):
                found.append(int(path.name))
        except OSError:
            continue
    return found
