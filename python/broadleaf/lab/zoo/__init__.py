"""A zoo of workloads, each scored by how far a system stays from the best that any could do.

``python -m broadleaf.lab.zoo --workload sleep --system broadleaf --engines 2 --tasks 200 --duration-ms 10 --json``
"""
