"""Broadleaf under joblib: what its own backends do, faster and with arrays of one's own."""

import os
import subprocess
import sys
import textwrap
import time
import warnings

import joblib
import numpy as np
import pytest
from broadleaf.interop.backends import offer_backends
from joblib import Parallel, delayed
from joblib.parallel import BACKENDS
from waiting import until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def registered(rc):
    before = dict(BACKENDS)
    rc.load_balanced_view().register_joblib_backend()
    yield
    BACKENDS.clear()
    BACKENDS.update(before)


def item(array, i):
    return float(array[i])


def write_and_read(array):
    before = float(array[0])
    array[0] = -1
    return before, array.flags.writeable


def copies(rc) -> int:
    return rc.link.counters()["copies"]


def test_an_array_of_many_calls_is_copied_once(rc):
    array = np.random.default_rng(0).random(1 << 20)
    before = copies(rc)
    for backend in ("broadleaf", "ipyparallel"):
        assert Parallel(n_jobs=4, backend=backend)(delayed(item)(array, i) for i in range(60)) == list(array[:60])
    # Once for each `Parallel`: nothing is kept from one to the next.
    assert copies(rc) - before <= 2


def speak(i):
    print("out", i)
    print("err", i, file=sys.stderr)
    if i == 3:
        raise ValueError(i)
    return i


def test_what_calls_print_is_shown_here(capsys):
    """As with joblib's own backends, whose workers share the terminal: nobody else has the results of these tasks."""
    assert Parallel(backend="broadleaf")(delayed(speak)(i) for i in range(3)) == [0, 1, 2]
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["out 0", "out 1", "out 2"]
    assert sorted(shown.err.splitlines()) == ["err 0", "err 1", "err 2"]
    with pytest.raises(ValueError, match="3"):
        Parallel(backend="broadleaf")([delayed(speak)(3)])
    assert capsys.readouterr().out == "out 3\n"


def test_it_is_kept_between_calls_that_do_not_overlap(rc):
    array = np.ones(1 << 18)
    before = copies(rc)
    calls = Parallel(n_jobs=2, backend="broadleaf", pre_dispatch=1, batch_size=1)
    assert calls(delayed(item)(array, i) for i in range(12)) == [1.0] * 12
    assert copies(rc) - before <= 1

    def nothing_is_in_use():
        rc[:].apply_sync(abs, 1)
        return in_use(rc) == 0

    assert until(nothing_is_in_use)


def in_use(rc) -> int:
    counters = rc.link.counters()
    return counters["segment_bytes"] - counters["warm_bytes"]


def test_every_call_has_an_array_of_its_own(rc):
    array = np.ones(1 << 18)
    calls = Parallel(n_jobs=2, backend="broadleaf", batch_size=1)
    assert calls(delayed(write_and_read)(array) for _ in range(10)) == [(1.0, True)] * 10
    assert array[0] == 1


def test_a_change_between_two_calls_is_seen(rc):
    array = np.ones(1 << 18)
    with Parallel(n_jobs=2, backend="broadleaf") as calls:
        for value in (1.0, 2.0, 3.0):
            array[-1] = value
            assert calls(delayed(item)(array, -1) for _ in range(6)) == [value] * 6


def nested(n: int, **options) -> list[int]:
    return Parallel(n_jobs=2, **options)(delayed(abs)(-i) for i in range(n))


@pytest.mark.parametrize("options", [{}, {"backend": "broadleaf"}, {"backend": "threading"}])
def test_calls_within_calls_end(options):
    calls = Parallel(n_jobs=4, backend="broadleaf")
    assert calls(delayed(nested)(5, **options) for _ in range(20)) == [list(range(5))] * 20


def nested_twice(n: int) -> list[list[int]]:
    return Parallel(n_jobs=2, backend="broadleaf")(delayed(nested)(n, backend="broadleaf") for _ in range(3))


def test_calls_within_calls_within_calls_end():
    assert Parallel(n_jobs=4, backend="broadleaf")(delayed(nested_twice)(2) for _ in range(8)) == [[[0, 1]] * 3] * 8


def engine_of(i: int) -> int:
    time.sleep(0.02)
    return os.getpid()


@pytest.mark.parametrize(("n_jobs", "engines"), [(2, 2), (3, 3), (-1, 4), (-2, 3), (100, 4)])
def test_at_most_n_jobs_engines_work(n_jobs, engines):
    calls = Parallel(n_jobs=n_jobs, backend="broadleaf", batch_size=1)
    assert len(set(calls(delayed(engine_of)(i) for i in range(40)))) == engines
    with pytest.raises(ValueError, match="n_jobs == 0"):
        Parallel(n_jobs=0, backend="broadleaf")(delayed(abs)(i) for i in range(2))


def test_a_view_may_be_named_beside_the_registered_one(rc):
    with joblib.parallel_config("broadleaf", n_jobs=2, view=rc.load_balanced_view([1, 2])):
        assert set(Parallel()(delayed(os.getpid)() for _ in range(8))) <= set(rc[1, 2].apply_sync(os.getpid))


def test_results_as_they_come():
    calls = Parallel(n_jobs=4, backend="broadleaf", return_as="generator")
    assert list(calls(delayed(pow)(i, 2) for i in range(50))) == [i**2 for i in range(50)]
    unordered = Parallel(n_jobs=4, backend="broadleaf", return_as="generator_unordered")
    assert sorted(unordered(delayed(pow)(i, 2) for i in range(50))) == [i**2 for i in range(50)]
    some = calls(delayed(engine_of)(i) for i in range(200))
    next(some)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del some
    # Another one: joblib leaves batches that it did not submit to the next call of the same.
    after = Parallel(n_jobs=4, backend="broadleaf", return_as="generator")
    assert list(after(delayed(abs)(-i) for i in range(5))) == list(range(5))


def test_a_timeout_ends_what_runs(rc):
    with pytest.raises((TimeoutError, joblib.parallel.TimeoutError)):
        Parallel(n_jobs=2, backend="broadleaf", timeout=0.3)(delayed(time.sleep)(600) for _ in range(4))
    assert rc.wait(timeout=20)


def divide(i: int) -> float:
    return 1 / i


def test_an_error_ends_the_others(rc):
    with pytest.raises(Exception, match="division by zero"):
        Parallel(n_jobs=2, backend="broadleaf")(delayed(divide)(i - 2) for i in range(5))
    assert rc.wait(timeout=20)
    assert Parallel(n_jobs=2, backend="broadleaf")(delayed(divide)(i + 1) for i in range(2)) == [1.0, 0.5]


def test_a_search_finds_the_same_scores():
    pytest.importorskip("sklearn")
    from sklearn.datasets import make_classification
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    features, classes = make_classification(200, 10, random_state=0)
    scores = []
    for backend in ("sequential", "broadleaf"):
        search = GridSearchCV(SVC(), {"C": np.logspace(-2, 2, 12)}, cv=5)
        with joblib.parallel_config(backend=backend, n_jobs=2):
            search.fit(features, classes)
        scores.append((search.best_params_, *search.cv_results_["mean_test_score"]))
    assert scores[0] == scores[1]


def test_many_batches_define_no_functions(rc, cluster):
    def functions() -> int:
        return cluster.status_sync()["controller"]["functions"]

    calls = Parallel(n_jobs=2, backend="broadleaf", batch_size=1)
    calls(delayed(pow)(i, 2) for i in range(4))
    before = functions()
    calls(delayed(pow)(i, 2) for i in range(100))
    assert functions() == before


@pytest.mark.parametrize("first", ["broadleaf as ipp", "joblib"])
@pytest.mark.parametrize("name", ["broadleaf", "ipyparallel"])
def test_the_names_are_there_without_registering(first, name):
    second = "joblib" if first != "joblib" else "broadleaf as ipp"
    program = f"""
        import {first}
        import {second}
        with ipp.Cluster(n=2):
            with joblib.parallel_config({name!r}):
                print(joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-i) for i in range(3)))
            print(joblib.Parallel(n_jobs=2, backend={name!r})(joblib.delayed(abs)(-i) for i in range(3)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("[0, 1, 2]\n[0, 1, 2]\n", 0), done.stderr


def test_importing_broadleaf_imports_no_joblib():
    code = "import sys, broadleaf; print('joblib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_name_that_was_registered_stays():
    def own(**kwargs):
        raise AssertionError("not called here")

    joblib.register_parallel_backend("broadleaf", own)
    offer_backends()
    assert BACKENDS["broadleaf"] is own
