"""Tasks on whichever engine is free."""

import ipyparallel as ipp


def area(side):
    return side**2


with ipp.Cluster(n=2) as rc:
    view = rc.load_balanced_view()
    view.block = False
    result = view.map_async(area, range(10))
    result.wait()
    print(result.get())
    print(list(view.imap(area, range(5))))
