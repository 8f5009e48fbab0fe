"""What calls print in pools and executors that take the place of processes is shown here, as it arrives."""

import concurrent.futures
import os
import subprocess
import sys
import threading

import broadleaf as ipp
import pytest
from waiting import until


@pytest.fixture
def pool(rc):
    """A pool over the engines of the module's cluster."""
    with ipp.Pool(client=rc) as pool:
        yield pool


def speak(n):
    print("out", n)
    print("err", n, file=sys.stderr)
    return n


def fail(n):
    print("out", n)
    raise ValueError(n)


ROUTES = {
    "apply": lambda pool: [pool.apply(speak, (n,)) for n in range(3)],
    "apply_async": lambda pool: [result.get(30) for result in [pool.apply_async(speak, (n,)) for n in range(3)]],
    "map": lambda pool: pool.map(speak, range(3)),
    "map of an iterator": lambda pool: pool.map(speak, iter(range(3)), 2),
    "map_async": lambda pool: pool.map_async(speak, range(3)).get(30),
    "starmap": lambda pool: pool.starmap(speak, [(n,) for n in range(3)]),
    "imap": lambda pool: list(pool.imap(speak, range(3))),
    "imap_unordered": lambda pool: sorted(pool.imap_unordered(speak, iter(range(3)), 2)),
}


@pytest.mark.parametrize("route", ROUTES)
def test_all_that_calls_of_a_pool_print_is_shown_before_their_values_are_there(pool, capsys, route):
    assert ROUTES[route](pool) == [0, 1, 2]
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["out 0", "out 1", "out 2"]
    assert sorted(shown.err.splitlines()) == ["err 0", "err 1", "err 2"]


def test_it_is_also_in_the_results(pool, capsys):
    result = pool.apply_async(speak, (7,))
    assert result.get(30) == 7
    assert result.async_result.stdout == "out 7\n"
    assert capsys.readouterr().out == "out 7\n"


def test_what_a_call_printed_before_it_failed_is_shown(pool, capsys):
    with pytest.raises(ValueError, match="4"):
        pool.apply(fail, (4,))
    assert capsys.readouterr().out == "out 4\n"


def test_it_is_shown_while_the_call_runs(pool, capsys, gate):
    wait = gate.task()

    def speak_and_wait():
        print("begun")
        return wait()

    result = pool.apply_async(speak_and_wait)
    shown = []

    def has_begun():
        shown.append(capsys.readouterr().out)
        return "begun\n" in "".join(shown)

    assert until(has_begun)
    assert not result.ready()
    gate.open()
    result.get(30)


def test_it_is_shown_although_nobody_keeps_the_result(rc, capsys):
    pool = ipp.Pool(client=rc)
    for n in range(20):
        pool.apply_async(speak, (n,))
    pool.close()
    pool.join()
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(f"out {n}" for n in range(20))


def test_a_callback_comes_after_what_its_call_printed(pool, capsys):
    seen = []
    result = pool.apply_async(speak, (3,), callback=lambda value: seen.append(capsys.readouterr().out))
    result.wait(30)
    assert seen == ["out 3\n"]


def test_the_value_is_not_there_before_another_thread_has_shown_the_output(pool, monkeypatch):
    """What a program prints after a call comes after what the call printed, whoever reads the connection."""
    lines = []
    writes, may_go_on = threading.Event(), threading.Event()

    class Slow:
        def write(self, text):
            writes.set()
            may_go_on.wait(30)
            lines.append(text)

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Slow())
    result = pool.apply_async(speak, (5,))
    # The background thread writes.
    assert writes.wait(30)
    waiting = threading.Thread(target=lambda: lines.append(result.get(30)))
    waiting.start()
    assert until(result.async_result.all_done)
    may_go_on.set()
    waiting.join(30)
    assert lines == ["out 5\n", 5]


def test_a_character_that_arrives_in_two_parts(pool, capsys):
    def write_in_two_parts():
        os.write(1, "ä".encode()[:1])
        sys.stdout.flush()
        os.write(1, "ä!\n".encode()[1:])

    pool.apply(write_in_two_parts)
    assert capsys.readouterr().out == "ä!\n"


def test_other_calls_of_the_client_stay_silent(rc, pool, capsys):
    assert rc.load_balanced_view().apply_sync(speak, 1) == 1
    with rc.executor() as executor:
        assert executor.submit(speak, 2).result(30) == 2
    assert capsys.readouterr().out == ""


def test_a_stream_that_is_gone(pool, monkeypatch):
    """As after `python program.py >&-`, and in programs without a terminal."""
    monkeypatch.setattr(sys, "stdout", None)
    assert pool.apply(speak, (1,)) == 1
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr(sys, "stdout", closed)
    assert pool.apply(speak, (1,)) == 1


def test_an_executor_of_its_own_engines(capsys):
    with ipp.ProcessPoolExecutor(2) as executor:
        assert list(executor.map(speak, range(3))) == [0, 1, 2]
        futures = [executor.submit(speak, n) for n in range(3, 6)]
        shown = capsys.readouterr().out
        for future in concurrent.futures.as_completed(futures):
            shown += capsys.readouterr().out
            assert f"out {future.result()}\n" in shown
        executor.submit(speak, 6)
    assert capsys.readouterr().out == "out 6\n"


PROGRAM = """
import sys
from {module} import {name}

def speak(n):
    print("call", n, flush=True)
    print("problem", n, file=sys.stderr)
    return n

if __name__ == "__main__":
    with {name}(2) as pool:
        total = sum(pool.map(speak, range(4)))
    print("total", total)
"""


@pytest.mark.parametrize("name", ["Pool", "ProcessPoolExecutor"])
def test_a_script_prints_what_it_prints_with_processes(tmp_path, name):
    modules = {"Pool": "multiprocessing", "ProcessPoolExecutor": "concurrent.futures"}
    # With it, a line is written in pieces, and those of two processes mix.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    outputs = []
    for module in (modules[name], "broadleaf"):
        script = tmp_path / "program.py"
        script.write_text(PROGRAM.format(module=module, name=name))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        outputs.append([sorted(done.stdout.splitlines()), sorted(done.stderr.splitlines())])
        if module == "broadleaf":
            assert done.stdout.splitlines()[-1] == "total 6"
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == ["call 0", "call 1", "call 2", "call 3", "total 6"]
    assert outputs[0][1] == ["problem 0", "problem 1", "problem 2", "problem 3"]
