"""joblib on engines, with a backend that the program registers."""

import ipyparallel as ipp
from joblib import Parallel, delayed, parallel_config

with ipp.Cluster(n=2) as rc:
    rc.load_balanced_view().register_joblib_backend(make_default=True)
    print(Parallel(n_jobs=2)(delayed(pow)(n, 2) for n in range(8)))
    with parallel_config(backend="ipyparallel", n_jobs=-1):
        print(sum(Parallel()(delayed(abs)(-n) for n in range(100))))
