"""Module paths, names and parameters of IPython Parallel, for programs that were written for it.

Nothing here is loaded before a program uses one of them. Broadleaf itself does not use it.
"""
