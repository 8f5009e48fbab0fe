"""A bed of hosts for the whole run. Where it cannot be made, its tests fail with the reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from bed import Bed
from bed.gridengine import start_gridengine
from bed.slurmd import start_slurm
from bed.sshd import open_with_key, start_sshd
from bed.torque import add_pbs
from debian_layer import LayerUnavailable

N_HOSTS = 4


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """A head and four hosts, with a network and files of their own."""
    try:
        bed = Bed(N_HOSTS)
    except LayerUnavailable as error:
        pytest.fail(f"there can be no hosts here: {error}", pytrace=False)
    yield bed
    bed.close()


@pytest.fixture(scope="session")
def ssh_hosts(bed: Bed) -> Bed:
    """The bed, with sshd on every host."""
    open_with_key(bed)
    for name in bed.names[1:]:
        start_sshd(bed, name)
    return bed


@pytest.fixture
def silent(ssh_hosts: Bed) -> Iterator[None]:
    """A port on n2 that accepts connections and never says a word."""
    program = "import socket; s = socket.create_server(('', 2300)); print('listens', flush=True); input()"
    listener = ssh_hosts.start("n2", sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert listener.stdout.readline() == "listens\n"
    yield
    listener.communicate("\n")


@pytest.fixture(scope="session")
def slurm(bed: Bed) -> Bed:
    """The bed, with Slurm."""
    start_slurm(bed)
    return bed


@pytest.fixture(scope="session")
def pbs(slurm: Bed) -> Bed:
    """The bed, with Slurm and commands of PBS."""
    add_pbs(slurm)
    return slurm


@pytest.fixture(scope="session")
def sge(bed: Bed) -> Bed:
    """The bed, with Grid Engine."""
    start_gridengine(bed)
    return bed
