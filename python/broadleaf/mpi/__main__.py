"""`mpiexec -n 64 python -m broadleaf.mpi --connection engine.json`: each rank is an engine of the cluster."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from broadleaf.cluster.start_error import ClusterStartError
from broadleaf.cluster.state import files
from broadleaf.cluster.state.credentials import read_engine_connection


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m broadleaf.mpi", description=__doc__)
    parser.add_argument("--connection", type=Path, required=True, metavar="FILE", help="the cluster's engine.json")
    parser.add_argument("--world", default="", metavar="NAME", help="name of this world; by default made up")
    parser.add_argument("--log", default="", metavar="FILE", help="where mpiexec's own output goes, if to a file")
    arguments = parser.parse_args()
    from broadleaf.mpi.host import connect

    try:
        connection = read_engine_connection(arguments.connection)
        link = connect(connection)  # before MPI starts: a relay must not inherit anything of it
    except (ClusterStartError, files.ClusterFileError, OSError) as error:
        sys.exit(f"broadleaf: {type(error).__name__}: {error}")
    start_timeout_s: float = connection["options"]["start_timeout_s"]
    del connection
    try:
        from mpi4py import MPI  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:
        sys.exit(f"broadleaf: MPI cannot be used by {sys.executable}: {error}; install `broadleaf[mpi]` and an MPI")
    from broadleaf.engine.processes.rank import run_rank

    run_rank(link, MPI, arguments.world, arguments.log, start_timeout_s)


if __name__ == "__main__":
    main()
