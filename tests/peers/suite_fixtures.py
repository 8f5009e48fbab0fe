"""Fixtures by the names of IPython Parallel's tests/conftest.py, on Broadleaf's public API."""

import inspect
import os
import tempfile
from unittest import mock

import ipyparallel as ipp
import pytest
import zmq
from IPython.core.profiledir import ProfileDir
from IPython.terminal.interactiveshell import TerminalInteractiveShell
from traitlets.config import Config

from . import setup, teardown

assert ipp.__name__ == "broadleaf", f"these tests are to run on Broadleaf, not on {ipp.__file__}"


def pytest_collection_modifyitems(items):
    for item in items:
        if inspect.iscoroutinefunction(item.obj):
            item.add_marker("asyncio")


@pytest.fixture(autouse=True, scope="module")
def ipython_dir():
    """A home of its own for IPython's files and Broadleaf's, for each module."""
    with tempfile.TemporaryDirectory(suffix=".ipython") as directory:
        homes = {"IPYTHONDIR": directory, "BROADLEAF_DIR": os.path.join(directory, "broadleaf")}
        with mock.patch.dict(os.environ, homes):
            ProfileDir.create_profile_dir_by_name(directory, name="default")
            yield directory


@pytest.fixture(scope="module")
def cluster(ipython_dir):
    setup()
    try:
        yield
    finally:
        teardown()


@pytest.fixture(scope="module")
def ipython(ipython_dir):
    config = Config()
    config.TerminalInteractiveShell.colors = "nocolor"
    config.TerminalTerminalInteractiveShell.term_title = (False,)
    config.TerminalInteractiveShell.autocall = 0
    config.TerminalInteractiveShell.simple_prompt = True
    config.HistoryManager.hist_file = ":memory:"
    yield TerminalInteractiveShell.instance(config=config)
    TerminalInteractiveShell.clear_instance()


@pytest.fixture
def ipython_interactive(ipython):
    with ipython.builtin_trap:
        yield ipython


@pytest.fixture(autouse=True)
def Context():
    context = zmq.Context.instance()
    try:
        yield context
    finally:
        context.destroy()


@pytest.fixture
def engine_launcher_class():
    return "local"


@pytest.fixture
def controller_launcher_class():
    return "local"


@pytest.fixture
def cluster_config():
    return Config()


@pytest.fixture
def Cluster(request, ipython_dir):
    """Makes clusters that are stopped at the test's end.

    The original adds arguments of its own, for its logs and speed (log, config, controller_args, load_profile, and
    'local' for both launchers): they say nothing about a test, and are left out. A test's own arguments are passed on.
    """

    def make(**arguments):
        made = ipp.Cluster(**arguments)
        request.addfinalizer(made.stop_cluster_sync)
        return made

    return make
