"""Errors from several engines, and a dependency."""

import ipyparallel as ipp

with ipp.Cluster(n=2) as rc:
    try:
        rc[:].apply_sync(lambda: 1 / 0)
    except ipp.error.CompositeError as composite:
        print(len(composite.elist), composite.elist[0][0])
    view = rc.load_balanced_view()
    first = view.apply_async(pow, 2, 10)
    with view.temp_flags(after=[first]):
        second = view.apply_async(pow, 3, 2)
    print(first.get(), second.get())
