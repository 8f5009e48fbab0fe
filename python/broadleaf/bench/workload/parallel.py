"""joblib's workload: calls that share a large array, and a scikit-learn search."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from .adapter import Adapter
from .measure import Values, expect

clock: Callable[[], float] = time.perf_counter


def shared_argument(peer: Adapter, mode: str, size_bytes: int, n: int, warmup: int) -> Values:
    """n calls of one `Parallel` with the same array, whose contents are new in every round."""
    import numpy as np
    from joblib import Parallel, delayed

    run = peer.parallel_contexts()[mode]
    array = np.zeros(size_bytes // 8)
    seconds = 0.0
    for round in range(warmup + 1):
        array[:] = np.random.default_rng(round).random(len(array))
        begin = clock()
        with run():
            values = Parallel()(delayed(item)(array, -i) for i in range(n))
        seconds = clock() - begin
        expect(values == [float(array[-i]) for i in range(n)], "a call had another array")
    return {"elapsed": seconds}


def item(array: Any, i: int) -> float:
    return float(array[i])


def grid_search(peer: Adapter, mode: str, candidates: int, folds: int, samples: int, warmup: int) -> Values:
    """A scikit-learn search: in a new program, which finds the system already running, and when everything is warm."""
    from joblib import parallel_config

    run = peer.parallel_contexts()[mode]
    program = peer.parallel_program() + f"print(timed_search({candidates}, {folds}, {samples})[0])"
    printed = ""
    for _ in range(2):  # workers that stay alive have then imported scikit-learn
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        expect(done.returncode == 0, done.stderr[-500:])
        printed = done.stdout
    with run():
        for _ in range(warmup):
            timed_search(candidates, folds, samples)
        seconds, scores = timed_search(candidates, folds, samples)
    with parallel_config(backend="sequential"):
        expect(scores == timed_search(candidates, folds, samples)[1], "a single process gets different scores")
    return {"new_program": float(printed), "elapsed": seconds}


def timed_search(candidates: int, folds: int, samples: int) -> tuple[float, tuple[float, ...]]:
    """Seconds and scores of a search over one parameter of a support vector machine, without the final fit."""
    import numpy as np
    from sklearn.datasets import make_classification
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    features, classes = make_classification(samples, 20, random_state=0)
    begin = clock()
    found = GridSearchCV(SVC(), {"C": np.logspace(-2, 2, candidates)}, cv=folds, refit=False).fit(features, classes)
    return clock() - begin, tuple(found.cv_results_["mean_test_score"])


MEASURES: dict[str, Any] = {"shared-argument": shared_argument, "grid-search": grid_search}
