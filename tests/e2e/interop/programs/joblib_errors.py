"""Values from joblib, and the error that a call raises."""

import ipyparallel as ipp
from joblib import Parallel, delayed

with ipp.Cluster(n=2) as rc:
    rc.load_balanced_view().register_joblib_backend()
    values = Parallel(n_jobs=2, backend="ipyparallel")(delayed(divmod)(12, n) for n in (1, 2, 3, 4))
    print(values)
    try:
        Parallel(n_jobs=2, backend="ipyparallel")(delayed(divmod)(12, n) for n in (1, 0))
    except ZeroDivisionError as error:
        print(type(error).__name__)
    except Exception as error:
        print(error.ename)
