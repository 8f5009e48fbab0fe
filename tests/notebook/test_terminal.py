"""The magics in IPython on a terminal, as a person uses them."""

from __future__ import annotations

import os
import re
import sys

import pytest

pytest.importorskip("IPython")
pexpect = pytest.importorskip("pexpect")

PROMPT = r"In \[\d+\]: "


@pytest.fixture
def session(tmp_path):
    """IPython under a terminal, with magics for two engines."""
    environment = os.environ | {"IPYTHONDIR": str(tmp_path), "TERM": "dumb", "COLUMNS": "120"}
    arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--no-confirm-exit"]
    child = pexpect.spawn(sys.executable, arguments, env=environment, encoding="utf-8", timeout=30, echo=False)
    child.expect(PROMPT)
    run(child, "import broadleaf as ipp; cluster = ipp.Cluster(n=2)")
    run(child, "rc = cluster.start_and_connect_sync(activate=True)")
    yield child
    run(child, "cluster.stop_cluster_sync()")
    child.sendline("exit")
    child.expect(pexpect.EOF)
    child.close()


def run(child, line):
    """Runs a line; returns what was shown until the next prompt."""
    child.sendline(line)
    child.expect(PROMPT)
    return child.before


def test_a_session(session):
    assert re.findall(r"Out\[\d:1\]: (\d)", run(session, "%px engine_id")) == ["0", "1"]
    assert "[stdout:0] hi" in run(session, "%px print('hi')")
    failed = run(session, "%px 1/0")
    assert "2 errors" in failed
    assert failed.count("ZeroDivisionError: division by zero") == 1
    assert "100%" in run(session, "rc[:].apply_async(abs, -1).wait_interactive()") or "2/2" in session.before
    assert "DirectView" in run(session, "rc[:]")


def test_ctrl_c(session):
    session.sendline("%px print('begun', flush=True); import time; time.sleep(60)")
    session.expect("begun")
    session.expect("begun")
    session.sendintr()
    session.expect("Received Keyboard Interrupt")
    session.expect(PROMPT)
    assert re.findall(r"Out\[\d:\d+\]: (\d)", run(session, "%px 1 + 1")) == ["2", "2"]
