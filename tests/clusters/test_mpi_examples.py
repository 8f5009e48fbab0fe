"""The examples of engines under MPI run unchanged."""

from __future__ import annotations

import re
import subprocess

import pytest
from mpi_environments import CHECKOUT, EnvironmentUnavailable, mpi_python

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("psum.py", r"3 ranks: (\d+\.\d+) by MPI, \1 by the client\n"),
        ("halo_exchange.py", r"3 ranks, 200 steps: the hottest point has 0\.\d+, as in one process\n"),
        ("n_body.py", r"3 ranks, 240 steps of 400 bodies: momentum is kept, and the stars are where one .* them\n"),
        (
            "broadcast_by_mpi.py",
            r"MPI's Bcast .* ms for 2\.1 MB to 3 ranks\nMPI's shared window .*\nbroadcast view .*\n",
        ),
    ],
)
def test_example(example, says):
    try:
        python = mpi_python("mpich")
    except EnvironmentUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    command = [str(python), str(CHECKOUT / "examples" / "mpi" / example), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(says, done.stdout), done.stdout
