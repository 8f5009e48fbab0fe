"""One adapter per other system, which uses only its public API. The benchmarks and the zoo measure with the same.

An adapter runs in that system's own environment, where Broadleaf is not installed: of Broadleaf it finds
`broadleaf.bench.workload` and nothing else.
"""
