"""A zoo of workloads, each scored by how far a system is from the best possible.

``python -m benchmarks.zoo --workload sleep --system broadleaf --engines 2 --tasks 200 --duration-ms 10 --json``
"""
