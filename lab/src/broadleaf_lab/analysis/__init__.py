"""What the runs show: effects, interactions, deltas, paths, components, and verdicts in words, each with its interval.

`frame.load` reads runs, `model.fit.fit` models them; the others take a frame or a fit.
"""
