"""`python -m benchmarks movers`: every way brings the same data over the links, and the fastest is named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from bed import network
from mpi_environments import CHECKOUT, EnvironmentUnavailable, mpi_python

from benchmarks.hosts.by_mpi import MOVERS, MPI_WAYS, TCP

pytestmark = pytest.mark.timeout(240)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    if (reason := network.why_not()) is not None:
        pytest.skip(reason)
    try:
        python = str(mpi_python("mpich"))
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "benchmarks", "movers", "--python", python, *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=200, check=False)


def test_every_way_is_measured_on_dense_and_sparse_data(tmp_path):
    file = tmp_path / "records.jsonl"
    # The last does not fit into any machine.
    data = "array 700,csc 0.0008,array 1000000"
    done = bench("--hosts", "2", "--data", data, "--repeats", "2", "--json", str(file))
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for form in ("array 700", "csc 0.0008"):
        of_form = [r for r in records if r["params"]["data"] == form]
        last = {r["params"]["mode"]: r["median"] for r in of_form if r["metric"] == "last_host"}
        assert set(last) == {TCP, *MOVERS.values(), *MPI_WAYS}
        into = {r["params"]["mode"]: r["min"] for r in of_form if r["metric"] == "bytes_into_host"}
        # Over the links, and not through the memory that these hosts share.
        assert min(into.values()) > 0.99, into
        of_tcp = {r["params"]["mode"]: r["median"] for r in of_form if r["metric"] == "of_tcp"}
        assert set(of_tcp) == {*MOVERS.values(), *MPI_WAYS}
        assert done.stdout.count("the fastest") == 2
    (left_out,) = [r for r in records if r["metric"] == "skipped"]
    assert "needs 176000.0 GB of memory on 2 hosts" in left_out["note"]
    assert "not measured: broadleaf, movers (2 hosts, 1 Gb/s, array 1000000)" in " ".join(done.stdout.split())
