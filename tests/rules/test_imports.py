"""What processes on the hosts of a cluster import."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("module", ["broadleaf.cluster.join", "broadleaf.mpi.__main__", "broadleaf.mpi.host"])
def test_a_relay_and_a_rank_do_without_the_class_that_starts_clusters(module):
    program = f"import sys, {module}; print('broadleaf.cluster.cluster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "False\n"
