"""What every test run checks at its end: that it leaves nothing behind."""

import gc
import os
import signal
import uuid
from collections import Counter
from pathlib import Path

import pytest
from gates import Gate
from hypothesis import HealthCheck, settings
from processes import processes_with

# How long an example takes says nothing on a busy machine; each test has a timeout.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# In the environment of every process that a test starts, however indirectly.
MARKER = "BROADLEAF_TEST_RUN"
# All tests of these folders need hosts that are made in namespaces.
SITES = ("clusters", "hosts")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks the tests that need more than this checkout by the folders they are in."""
    if item.path.relative_to(Path(__file__).parent).parts[0] in SITES:
        item.add_marker("sites")


def pytest_collection_finish() -> None:
    """Spares later collections of garbage all that the tests have imported, so that `gc.collect()` takes little."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """Ctrl-C is tested, and a run started in the background inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def no_leaks(tmp_path_factory):
    """Clusters store their files in a directory of this run, and leave no process, segment, socket or file behind."""
    run = uuid.uuid4().hex
    os.environ[MARKER] = run
    os.environ["BROADLEAF_DIR"] = str(tmp_path_factory.mktemp("broadleaf"))
    # Without it sockets are in the directory above, too: that of the session is shared by all test runs of this user.
    session = os.environ.pop("XDG_RUNTIME_DIR", None)
    before = _descriptors()
    yield
    gc.collect()
    left = processes_with(**{MARKER: run})
    assert left == {}, f"processes left behind: {left}"
    more = _descriptors() - before
    assert not more, f"descriptors left open: {dict(more)}"
    found = [path for path in Path(os.environ["BROADLEAF_DIR"]).glob("profiles/*/*") if path.is_dir()]
    assert found == [], f"cluster directories left behind: {found}"
    del os.environ[MARKER], os.environ["BROADLEAF_DIR"]
    if session is not None:
        os.environ["XDG_RUNTIME_DIR"] = session


def _descriptors() -> Counter[str]:
    """Open descriptors of the kinds that clusters use, counted by kind."""
    kinds: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        kind = target.partition(":")[0]
        if kind in ("socket", "pipe") or target.startswith(("/memfd:", "/dev/shm/", "anon_inode:[pidfd]")):
            kinds[kind] += 1
    return kinds


@pytest.fixture
def gate(tmp_path):
    """A gate that holds tasks until the test opens it, or ends."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


@pytest.fixture
def cluster_processes():
    """A function that returns the living processes of a cluster id. Other test runs may use the same id."""
    return lambda cluster_id: processes_with(BROADLEAF_CLUSTER_ID=cluster_id, **{MARKER: os.environ[MARKER]})
