"""The first steps of IPython Parallel's documentation."""

import os

import ipyparallel as ipp

with ipp.Cluster(n=2) as rc:
    view = rc[:]
    print(rc.ids)
    view["a"] = 5
    print(view.apply_sync(lambda x: a + x, 10))
    print(view.pull("a", block=True))
    print(len(set(view.apply_sync(os.getpid))))
