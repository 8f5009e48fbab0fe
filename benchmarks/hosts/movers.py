"""Movers on hosts in namespaces: MPI ranks, started as `mpiexec` starts them by ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bed.network import wait_until

if TYPE_CHECKING:
    from bed.network import HostedCluster, Network

# Otherwise UCX moves data from "host" to "host" through the memory that they share here, bypassing the links.
ENVIRONMENT = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
_START_S = 60
_END_S = 20


class World:
    """`mpiexec` on host 0 of a network, with one rank on each host, in their order.

    `python` must have mpi4py; MPICH's `mpiexec` is in the same directory.
    """

    def __init__(self, network: Network, python: str, arguments: Sequence[str], **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="movers-")
        script = Path(self._folder.name) / "rsh"
        cases = "".join(
            f'{host.address}) exec {shlex.join(network.shell(host))} sh -c "$*";;\n' for host in network.hosts
        )
        script.write_text(f"#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}esac\n")
        script.chmod(0o700)
        head = network.hosts[0]
        hosts = ",".join(host.address for host in network.hosts)
        command = [
            *network.shell(head), str(Path(python).parent / "mpiexec"), "-launcher", "rsh", "-launcher-exec",
            str(script), "-localhost", head.address, "-hosts", hosts, "-ppn", "1", "-n", str(len(network.hosts)),
            python, *arguments,
        ]  # fmt: skip
        self.process: subprocess.Popen[Any] = subprocess.Popen(command, env=os.environ | ENVIRONMENT, **options)

    def close(self) -> None:
        """Waits until it has ended, or ends it."""
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._folder.cleanup()


def start_movers(cluster: HostedCluster, python: str, **options: Any) -> World:
    """Movers of a cluster whose option `payload` is `mpi` or `rma`; returns once every host has one."""
    arguments = ["-m", "broadleaf.mpi.mover", "--connection", cluster.cluster.relay_file]
    world = World(cluster.network, python, arguments, **options)

    def all_there() -> bool:
        if world.process.poll() is not None:
            raise RuntimeError(f"mpiexec ended with {world.process.returncode}")
        return all(host["mover"] is not None for host in cluster.host_status().values())

    try:
        wait_until(all_there, _START_S, "a mover on every host")
    except BaseException:
        world.process.terminate()
        world.close()
        raise
    return world
