"""What the tests of the laboratory share: a planted study and its report, made once, and the checks at the end."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before numpy is imported: the matrices are so small that threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from broadleaf_lab.report.build import Report
    from broadleaf_lab.report.collect import Collected
    from broadleaf_lab.study import Study


# How long an example takes says nothing on a busy machine; each test has a timeout.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# In the environment of every process that a test starts, however indirectly.
MARKER = "BROADLEAF_LAB_TEST_RUN"


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C is tested, and a run started in the background inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def no_leaks() -> Iterator[None]:
    """No process, socket or pipe is left behind."""
    run = uuid.uuid4().hex
    os.environ[MARKER] = run
    before = _descriptors()
    yield
    gc.collect()
    left = _marked(run)
    assert left == [], f"processes left behind: {left}"
    more = _descriptors() - before
    assert not more, f"descriptors left open: {dict(more)}"
    del os.environ[MARKER]


def _marked(run: str) -> list[str]:
    """The command lines of this run's other processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) != os.getpid() and f"{MARKER}={run}".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:
            continue
    return found


def _descriptors() -> Counter[str]:
    """Open sockets and pipes, counted by kind."""
    kinds: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            kinds[os.readlink(f"/proc/self/fd/{number}").partition(":")[0]] += 1
        except FileNotFoundError:
            continue
    return Counter({kind: kinds[kind] for kind in ("socket", "pipe")})


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The planted study with all its runs."""
    from planted import written_study

    return written_study(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="session")
def found(study: Study) -> Collected:
    """Its data and models."""
    from broadleaf_lab.report.collect import collect

    return collect(study)


@pytest.fixture(scope="session")
def report(study: Study, found: Collected) -> Report:
    """Its report, without images."""
    from broadleaf_lab.report.build import write

    with pytest.MonkeyPatch.context() as patch:
        # Collected once for all tests.
        patch.setattr("broadleaf_lab.report.build.collect", lambda _: found)
        return write(study, images=False)
