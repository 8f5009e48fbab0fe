"""Finds the best setting of a workload, proves it on fresh runs, and says what it costs.

`tuner.tune` does everything; the thing measured is an `Evaluate`, so that a synthetic system and a real program are
tuned by the same code.
"""
