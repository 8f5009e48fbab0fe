"""Consoles of Jupyter on an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import broadleaf as ipp
import pytest
from waiting import until

pytest.importorskip("ipykernel")
pytest.importorskip("jupyter_client")

# A console, in a process of its own, which takes its sockets along.
CONSOLE = """
import json, sys
from jupyter_client import BlockingKernelClient
console = BlockingKernelClient()
console.load_connection_file(sys.argv[1])
console.start_channels()
console.wait_for_ready(timeout=60)
shown = []
for code in ("print('hi', x, engine_id)\\ny = x + 1\\ny", "1 / 0"):
    console.execute_interactive(code, timeout=60, output_hook=lambda m: shown.append([m["msg_type"], m["content"]]))
console.complete("x.bit_", 6)
print(json.dumps([shown, console.get_shell_msg(timeout=60)["content"]["matches"]]))
"""


def test_outside_an_engine():
    with pytest.raises(RuntimeError, match="is for engines"):
        ipp.bind_kernel()


@pytest.mark.timeout(180)
def test_a_console_sees_and_changes_the_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    with ipp.Cluster(n=2) as rc:
        rc[1]["x"] = 5
        path = rc[1].apply_sync(ipp.bind_kernel)
        assert rc[1].apply_sync(ipp.bind_kernel) == path, "there is one for an engine"
        assert os.path.basename(path) in rc[1].execute("%connect_info", block=True).stdout
        done = subprocess.run([sys.executable, "-c", CONSOLE, path], capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stderr
        shown, matches = json.loads(done.stdout)
        assert ["stream", {"name": "stdout", "text": "hi 5 1\n"}] in shown
        assert [content["data"] for kind, content in shown if kind == "execute_result"] == [{"text/plain": "6"}]
        (error,) = (content for kind, content in shown if kind == "error")
        assert error["ename"] == "ZeroDivisionError"
        assert "division by zero" in "\n".join(error["traceback"])
        assert ".bit_length" in matches
        assert rc[1]["y"] == 6
        pid = int(path.rpartition("-")[2].partition(".")[0])
        assert os.path.exists(f"/proc/{pid}")
    assert until(lambda: not os.path.exists(f"/proc/{pid}")), "it ends with the engine"
