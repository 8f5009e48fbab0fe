"""Engines that are MPI ranks: `mpiexec -n 4 python -m broadleaf.mpi --connection engine.json`."""
