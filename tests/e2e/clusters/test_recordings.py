"""Recordings of inputs: what is in them, what is not, and how they end."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import broadleaf as ipp
import numpy as np
import pytest
from broadleaf.cli import group
from broadleaf.errors import ClusterStartError
from broadleaf.requests import RequestFailed
from click.testing import CliRunner
from waiting import until

pytestmark = pytest.mark.timeout(120)

SECRET = "correct-horse-battery"


def calls(text: str) -> list[tuple[int, str | dict, str | None]]:
    """Time, call and number of outputs of each line after the head."""
    lines = [line.split("\t") for line in text.splitlines()[2:]]
    return [(int(at), json.loads(call), rest[0] if rest else None) for at, call, *rest in lines if at != "end"]


def kinds(text: str) -> list[str]:
    """The kind of each input."""
    inputs = [call["input"] for _, call, _ in calls(text) if "input" in call]
    return [kind if isinstance(kind, str) else next(iter(kind)) for kind in inputs]


def keeps_secrets(rc: ipp.Client, directory: Path) -> None:
    """Has a secret travel in every way."""
    view = rc.load_balanced_view()

    def says(argument):
        print("correct-horse-battery")
        os.write(1, b"correct-horse-battery\n")
        return argument + "correct-horse-battery"

    def fails(argument):
        raise ValueError(argument)

    def dies():
        os.write(2, b"correct-horse-battery\n")
        os.abort()

    assert view.apply_sync(says, SECRET) == SECRET + SECRET
    assert list(view.map_async(says, [SECRET] * 20).get()) == [SECRET + SECRET] * 20
    with pytest.raises(ipp.RemoteError):
        rc[:].apply_sync(fails, SECRET)
    with view.temp_flags(label=SECRET):
        view.apply_sync(len, SECRET)
    rc[:].push({"correct_horse_battery": SECRET, "array": np.frombuffer((SECRET * 10_000).encode(), np.uint8)})
    assert rc[0].pull("correct_horse_battery", block=True) == SECRET
    rc[:].execute(f"'{SECRET}'", block=True)
    with pytest.raises(ipp.EngineError):
        rc[1].apply_sync(dies)


def test_a_recording_has_all_inputs_and_no_contents(tmp_path):
    kept, sent = tmp_path / "kept.txt", tmp_path / "sent.txt"
    with ipp.Cluster(n=2, record_inputs=str(kept)) as rc:
        keeps_secrets(rc, tmp_path)
        rc.save_inputs(str(sent))
        text = sent.read_text()
        assert kept.read_text().startswith(text)
    title, head = text.splitlines()[:2]
    assert title == "broadleaf recording 1"
    assert json.loads(head)["start"]["controller"]["n_engines"] == 2
    found = kinds(text)
    assert {"client_up", "function", "submit", "done", "output", "report", "fork_server_up"} <= set(found)
    assert found.count("submit") >= 8
    times = [at for at, *_ in calls(text)]
    assert times == sorted(times)
    whole = kept.read_text()
    for spelling in (SECRET, SECRET.replace("-", "_"), SECRET.encode().hex(), "says", "fails", "horse"):
        assert spelling not in whole
    # What it is told while it stops is there, too.
    assert '{"input":"owner_down"}' in whole
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_recording_ends_at_its_limit_and_says_so(tmp_path):
    path = tmp_path / "inputs.txt"
    with ipp.Cluster(n=1, record_inputs=str(path), record_inputs_bytes=50_000) as rc:
        assert sum(rc.load_balanced_view().map_sync(abs, range(2000), chunksize=1)) == sum(range(2000))
        rc.save_inputs(str(tmp_path / "copy.txt"))
        assert until(lambda: "has ended after" in rc.cluster.log_path().read_text())
        assert rc[0].apply_sync(abs, -1) == 1
    text = path.read_text()
    assert text.splitlines()[-1] == "end\tlimit"
    assert 40_000 < len(text) <= 50_000 + len("\t0\tcbf29ce484222325\nend\tlimit\n")
    assert (tmp_path / "copy.txt").read_text() == text


def test_a_recording_of_several_pieces_is_copied_whole(tmp_path):
    kept, sent = tmp_path / "kept.txt", tmp_path / "sent.txt"
    with ipp.Cluster(n=1, record_inputs=str(kept)) as rc:
        view = rc.load_balanced_view()
        while kept.stat().st_size < 5_000_000:
            view.map_sync(abs, range(5000), chunksize=1)
        rc.save_inputs(str(sent), stop=True)
        assert sent.stat().st_size > 5_000_000
        assert view.apply_sync(abs, -1) == 1
    assert sent.read_text() == kept.read_text()
    assert kept.read_text().splitlines()[-1] == "end\tstopped"


def test_without_the_option_nothing_is_recorded(tmp_path):
    with ipp.Cluster(n=1) as rc, pytest.raises(RequestFailed, match="with the option record_inputs"):
        rc.save_inputs(str(tmp_path / "inputs.txt"))
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_whose_recording_cannot_be_written_does_not_start(tmp_path):
    path = tmp_path / "missing" / "inputs.txt"
    with pytest.raises(ClusterStartError, match=r"recording inputs in .*missing/inputs\.txt: No such file"):
        ipp.Cluster(n=1, record_inputs=str(path)).start_cluster_sync()


def test_a_controller_that_is_killed_leaves_what_it_was_told(tmp_path):
    path = tmp_path / "inputs.txt"
    program = f"""
import os, signal
import broadleaf as ipp

cluster = ipp.Cluster(n=1, record_inputs={str(path)!r})
rc = cluster.start_and_connect_sync()
rc[0].apply_sync(abs, -1)
os.kill(rc.cluster.status_sync()["pid"], signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=False, capture_output=True)
    assert "submit" in kinds(path.read_text())
    assert path.read_text().endswith("\n")


def test_relays_record_on_their_own_hosts(tmp_path):
    path = tmp_path / "inputs.txt"
    cluster = ipp.Cluster(n=0, listen="127.0.0.1:0", record_inputs=str(path))
    with cluster as rc, ipp.Relay(cluster.relay_file, 2, name="far"):
        rc.wait_for_engines(2, timeout=30)
        array = np.frombuffer((SECRET * 100_000).encode(), np.uint8)
        assert rc[:].apply_sync(len, array) == [len(array)] * 2
        assert all(np.array_equal(got, array) for got in rc[:].apply_sync(lambda x: x, array))
        done = CliRunner().invoke(group, ["trace", "--inputs", str(tmp_path / "sent.txt")])
        assert done.exit_code == 0, done.output
        assert "Relays have their own recordings" in done.output
        assert "inputs.txt.far" in done.output
    text = (tmp_path / "inputs.txt.far").read_text()
    assert json.loads(text.splitlines()[1])["start"] == "relay"
    found = {
        kind if isinstance(kind, str) else next(iter(kind)) for _, call, _ in calls(text) for kind in call.values()
    }
    assert {"on_function", "on_order", "on_report", "on_offered", "on_objects", "on_fork_server_up"} <= found
    whole = text + path.read_text()
    assert "horse" not in whole
    assert '"returning":{"on_done"' in path.read_text()


def test_the_command_writes_events_and_inputs(tmp_path):
    kept, sent, events = (tmp_path / name for name in ("kept.txt", "sent.txt", "events.json"))
    with ipp.Cluster(n=1, record_inputs=str(kept), record_inputs_bytes=1 << 20) as rc:
        rc[0].apply_sync(abs, -1)
        run = CliRunner().invoke
        done = run(group, ["trace", str(events)])
        assert done.exit_code == 0, done.output
        assert json.loads(events.read_text())["traceEvents"]
        done = run(group, ["trace", "--inputs", "--stop", str(sent)])
        assert done.exit_code == 0, done.output
        assert done.output.startswith(f"{sent}: ")
        assert " inputs, " in done.output
        assert sent.read_text() == kept.read_text()
        done = run(group, ["trace", "--stop", str(sent)])
        assert done.exit_code == 2
        assert "--stop needs --inputs" in done.output
    with ipp.Cluster(n=1, record_inputs=str(kept), record_inputs_bytes=2000) as rc:
        rc[0].apply_sync(abs, -1)  # More than fits.
        done = run(group, ["trace", "--inputs", str(sent)])
        assert "The recording ended at its maximum size of 2 kB" in done.output
