"""Engines where IPython is not installed."""

from __future__ import annotations

import subprocess
import textwrap

import pytest
from page_environments import python_with

pytestmark = pytest.mark.timeout(120)


def printed(body: str, *requirements: str) -> str:
    """What a program prints that runs `body` with a client `rc`, where only these packages are installed."""
    program = f"import broadleaf as ipp\nwith ipp.Cluster(n=1) as rc:\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    done = subprocess.run(
        [python_with(requirements), "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_libraries_that_look_for_ipython_are_imported():
    """pandas asks whether there is a `get_ipython`."""
    assert printed("print(rc[0].apply_sync(lambda: __import__('pandas').Series([1, 2]).sum()))", "pandas") == "3\n"


def test_a_magic_says_what_to_install():
    body = """
        for code in ("%pwd", "!ls", "get_ipython().run_line_magic('pwd', '')"):
            try:
                rc[0].execute(code, block=True)
            except ipp.RemoteError as error:
                print(error.ename, "pip install 'broadleaf[notebook]'" in error.evalue)
    """
    assert printed(body) == "ImportError True\nImportError True\nNameError True\n"
