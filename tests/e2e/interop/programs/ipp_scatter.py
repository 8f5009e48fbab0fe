"""A list that is scattered to the engines and gathered again."""

import ipyparallel as ipp

with ipp.Cluster(n=2) as rc:
    view = rc.direct_view()
    view.block = True
    view.scatter("part", list(range(10)))
    view.execute("squares = [n * n for n in part]")
    print(view.gather("squares"))
    print(view.apply(lambda: sum(part)))
