"""Benchmarks of Broadleaf beside its peers: `broadleaf bench`.

Every figure in the documentation comes from here. Each system under test, including ours, runs in a child process of
the same protocol (`peers/`), and the systems alternate in each repeat, so that a slow minute of the machine affects all
of them.
"""
