"""Functions that run on engines when they are called."""

import ipyparallel as ipp

with ipp.Cluster(n=2) as rc:
    view = rc[:]

    @view.remote(block=True)
    def greet(name):
        return "hello " + name

    @view.parallel(block=True)
    def doubled(part):
        return [2 * n for n in part]

    print(greet("leaf"))
    print(list(doubled(list(range(6)))))
