"""The work of the benchmarks, and the adapters of our own side: of Broadleaf, and of the bare machine.

Nothing here imports anything of Broadleaf but `own`, its adapter: with that other adapters run where Broadleaf is not
installed.
"""
