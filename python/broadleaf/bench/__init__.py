"""Measures a cluster on this machine: `broadleaf bench`.

A case (`cases`) is run in rounds (`runner`). In each, every system takes a turn (`turn`): a child process that serves
an adapter (`workload`), which uses only its system's public API. The figures become records (`record`), and these a
table (`table`, `sizes`). Where other systems take turns with Broadleaf, as in the benchmarks of its repository, a slow
minute of the machine affects all of them.
"""
