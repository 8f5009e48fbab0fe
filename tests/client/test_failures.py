"""Every way a task can end has its exception."""

import json
import pickle

import broadleaf as ipp
import pytest
from broadleaf import error
from broadleaf.client import failures


@pytest.mark.parametrize("reason", sorted(failures.REFUSALS))
def test_each_refusal_has_its_type(reason):
    detail = {reason: 7} if reason == "NoSuchEngine" else reason
    exception = failures.refusal(detail)
    assert type(exception) is failures.REFUSALS[reason][0]
    assert exception.ename == type(exception).__name__
    assert str(exception)
    assert "{" not in str(exception)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ({"Exit": 3}, "exited with code 3"),
        ({"Signal": 11}, r"signal 11 \(SIGSEGV\)"),
        ({"Signal": 200}, "signal 200"),
        ("OutOfMemory", "memory ran out"),
        ("Unresponsive", "did not end in time"),
        ("Stopped", "stopped on request"),
        ("HostGone", "lost with its host"),
        ("Disconnected", "fate is unknown"),
    ],
)
def test_a_death_certificate_says_what_happened(rc, cause, words):
    fields = {"engine": 2, "uuid": "u", "pid": 5, "host": "h", "cause": cause, "last_output": "the end\n"}
    certificate = failures.death_certificate(fields)
    exception = ipp.EngineError("", {"engine_id": 2}, certificate)
    with pytest.raises(ipp.EngineError, match=words):
        raise exception
    assert "the end" in str(exception)
    assert "engine 2 (pid 5 on h)" in str(exception)
    again = pickle.loads(pickle.dumps(exception))
    assert again.certificate == certificate
    assert str(again) == str(exception)


def test_a_certificate_from_the_wire(rc):
    origin = rc[0]._submitter("apply", "applied", None, None).origin
    payload = json.dumps({"engine": 0, "cause": "OutOfMemory", "task_started": True}).encode()
    exception = failures.decode_failure(failures.STATUS_LOST, payload, 0, origin)
    assert exception.certificate.cause == "out_of_memory"
    assert "while it ran this task" in str(exception)
    assert isinstance(failures.decode_failure(failures.STATUS_LOST, b"", 0, origin), ipp.EngineError)
    assert isinstance(failures.decode_failure(failures.STATUS_TIMEOUT, b"", 1, origin), error.TaskTimeout)
    assert isinstance(failures.decode_failure(failures.STATUS_TIMEOUT, b"", -1, origin), error.DependencyTimeout)
    assert isinstance(failures.decode_failure(failures.STATUS_CANCELLED, b"", -1, origin), error.TaskAborted)
    assert isinstance(failures.decode_failure(failures.STATUS_REFUSED, b"\xff", -1, origin), error.BroadleafError)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("version", ipp.VersionMismatch), ("python", ipp.VersionMismatch), ("identity", ipp.AuthenticationFailed),
     ("full", ipp.ClusterConnectionError), ("malformed", ipp.ClusterConnectionError)],
)  # fmt: skip
def test_each_refused_connection_has_its_type(kind, expected):
    import fake_native

    with pytest.raises(expected, match="refused on request"):
        ipp.Client({"refuse": kind}, native=fake_native)


def test_no_connection_file(tmp_path):
    with pytest.raises(ipp.ClusterConnectionError, match=r"connection file .* cannot be read .*`broadleaf list`"):
        ipp.Client(tmp_path / "nothing.json")


def test_composite_errors_are_taken_apart():
    one = ipp.RemoteError("A", "a", "tb", {"engine_id": 1})
    two = ipp.RemoteError("B", "b", "", {"engine_id": 2})
    inner = error.composite([one], "f")
    outer = error.composite([inner, two], "g")
    assert outer.exceptions == [one, two]
    assert [entry[0] for entry in outer.elist] == ["A", "B"]
    assert "[2:apply] B: b" in str(outer)
    with pytest.raises(ipp.CompositeError):
        ipp.collect_exceptions([1, one])
    assert ipp.collect_exceptions([1, 2]) == [1, 2]
    again = pickle.loads(pickle.dumps(outer))
    assert again.render_traceback() == outer.render_traceback()


def test_every_public_name_is_there():
    for name in ipp.__all__:
        if name not in ("Cluster", "ClusterManager"):
            assert getattr(ipp, name) is not None
    with pytest.raises(AttributeError):
        _ = ipp.no_such_name


def test_importing_the_package_is_light():
    import subprocess
    import sys

    heavy = ("numpy", "IPython", "rich", "asyncio", "ssl", "cloudpickle")
    code = f"import sys, broadleaf; print(*(m for m in {heavy} if m in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout.strip() == ""
