"""A client that several threads use from its first call on."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(180)

FIRST_CALLS = """
import faulthandler
import sys
import threading

import broadleaf as ipp

faulthandler.dump_traceback_later(60, exit=True)
sys.setswitchinterval(1e-5)
with ipp.Cluster(n=2) as client:
    together = threading.Barrier(8)
    answers = []

    def call(number):
        view = (client.load_balanced_view(), client[0], client.broadcast_view([1]))[number % 3]
        together.wait()
        for _ in range(20):
            answers.append(view.apply_sync(lambda x: x + number, 1))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(answers))
"""


@pytest.mark.parametrize("attempt", range(4))
def test_first_calls_of_many_threads(attempt):
    """They stood still: one thread had the interpreter and waited for a lock, whose holder waited for the interpreter.
    Or one found a module that another was importing."""
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, timeout=90)
    assert done.stderr == ""
    assert done.stdout == "160\n"


HALF_IMPORTED = """
import sys
import types

import broadleaf as ipp

NAMES = "cloudpickle.cloudpickle", "numpy", "numpy.random"
with ipp.Cluster(n=1) as client:
    for name in NAMES:
        sys.modules[name] = types.ModuleType(name)
    views = client[0], client.load_balanced_view(), client.broadcast_view([0])
    # Whatever another thread is importing, calls that do not need it go on.
    print([view.apply_sync(abs, -1) for view in views], views[0].map_sync(abs, [-1, -2]), views[1].map_sync(abs, [-3]))
    for name in NAMES:
        del sys.modules[name]
    print(client[0].apply_sync(lambda: 4))
"""


def test_calls_beside_an_import_that_has_not_ended():
    done = subprocess.run([sys.executable, "-c", HALF_IMPORTED], capture_output=True, text=True, timeout=90)
    assert done.stderr == ""
    assert done.stdout == "[1, 1, [1]] [1, 2] [3]\n4\n"
