"""MPI: engines that are ranks, and payload that moves between hosts by MPI.

`__main__` is the program of a rank: it finds or starts the node of its `host`, and becomes an engine. `mover` is the
program of a host's relay that sends and receives payload, as the `flows` say. What they import before MPI starts is
little, because all ranks of a host import at the same time.
"""
