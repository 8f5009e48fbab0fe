"""One adapter per system under test, which uses only its public API.

This package also runs by itself, as top-level package `peers` inside a peer's own environment, where Broadleaf is not
installed: nothing here imports anything of Broadleaf but `broadleaf_`, the adapter of our own side.
"""
