"""One adapter a system under test, over its public API alone.

This package also runs by itself, as top-level package `peers` inside a peer's own environment, where Broadleaf is not
installed: nothing here imports anything of Broadleaf but `broadleaf_`, the adapter of our own side.
"""
