"""Engines that are ranks of MPI: `mpiexec -n 4 python -m broadleaf.mpi --connection engine.json`."""
