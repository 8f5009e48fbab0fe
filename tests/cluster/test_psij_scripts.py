"""What PSI/J is asked to submit, and the error if it cannot."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import BlockRequest, make_engine_set
from broadleaf.errors import ClusterStartError
from psij_packages import PackagesUnavailable, psij_packages
from waiting import until

pytestmark = pytest.mark.sites

GOLDEN = Path(__file__).parent / "psij_scripts"
PROGRAM = """
import json, sys
from pathlib import Path
from broadleaf.cluster.engine_sets import BlockRequest, make_engine_set
name, options, n = json.loads(sys.argv[1])
engines = make_engine_set(name, None, options)
engines.require()
print(engines.script(BlockRequest("lab", Path("/home/me/lab"), n, {"private_key": "SECRET"})))
"""


def asked_for(name: str, options: dict, n: int | None, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program that prints what would be submitted, after its end."""
    try:
        packages = psij_packages()
    except PackagesUnavailable as error:
        pytest.skip(str(error))
    paths = os.pathsep.join([str(packages), str(Path(ipp.__file__).parent.parent)])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([name, options, n])],
        capture_output=True, text=True, check=False, timeout=50,
        env=os.environ | {"PYTHONPATH": paths, "BROADLEAF_DIR": str(folder)},
    )  # fmt: skip


def script(name: str, options: dict, n: int | None, folder: Path) -> str:
    """What would be submitted, without machine-specific parts."""
    done = asked_for(name, options, n, folder)
    assert done.returncode == 0, done.stderr
    assert "SECRET" not in done.stdout
    submitted = done.stdout.partition("\n# block-")[0]
    lines = [line for line in submitted.replace(str(folder), "BASE").splitlines() if line.strip()]
    return "\n".join(line if "/bin/bash " not in line else _launcher(line) for line in lines) + "\n"


def _launcher(line: str) -> str:
    """The line that starts the job, without the name that PSI/J gives its copy of a launcher."""
    words = line.split()
    launcher = next(word for word in words if word.strip('"').endswith(".sh"))
    return line.replace(launcher.strip('"').rpartition("/")[0], "LAUNCHERS")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("golden", "options", "n"),
    [
        (
            "pbs",
            {
                "executor": "pbs",
                "nodes": 4,
                "engines_per_host": 16,
                "walltime": "2h",
                "queue": "long",
                "account": "physics",
            },
            None,
        ),
        ("pbs-one-node", {"executor": "pbs", "attributes": ["l=place=excl"]}, 8),
        ("lsf", {"executor": "lsf", "nodes": 2, "engines_per_host": 4, "walltime": "30m", "queue": "normal"}, None),
    ],
)
def test_golden_scripts(golden, options, n, tmp_path):
    assert script("psij", options, n, tmp_path) == (GOLDEN / f"{golden}.sh").read_text()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("folder", "options", "said"),
    [
        (
            "my files",
            {},
            "jobs would find their files in '.*/my files', but paths in PSI/J directives cannot contain a space; set",
        ),
        ("it's", {}, "a single quote; set BROADLEAF_DIR to another one"),
        ("caf\u00e9", {}, "cannot contain '\u00e9'"),
        ("base", {"queue": "a b"}, "queue='a b': PSI/J directives cannot contain a space here"),
        ("base", {"account": "a\nb"}, r"account='a\\nb': PSI/J directives cannot contain a line break here"),
        ("base", {"attributes": ["l=a\nb"]}, r"attributes='l=a\\nb': .* a line break"),
        ("base", {"attributes": ['R="x"']}, "attributes=.* a double quote"),
    ],
)
def test_what_psij_does_not_quote_is_refused_by_name(tmp_path, folder, options, said):
    done = asked_for("psij", {"executor": "pbs", **options}, 1, tmp_path / folder)
    assert done.returncode == 1
    assert re.search(f"ClusterStartError: .*{said}", done.stderr), done.stderr


def test_what_to_install_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "psij", None)
    with pytest.raises(ClusterStartError, match=r'pip install "broadleaf\[psij\]"'):
        ipp.Cluster(engines="psij", executor="flux", n=4).start_cluster_sync()


def test_options():
    assert make_engine_set("psij", None, {"nodes": "2"}).nodes == 2
    assert ipp.PSIJ("pbs_classic", nodes=2, engines_per_host=4).block_engines(0) == 8
    assert ipp.PSIJ("pbs").block_engines(0) is None


PRETENDED = """#!/bin/sh
echo "$BROADLEAF_BLOCK" >> "$0.ran"
until [ -e "$0.may_end" ]; do sleep 0.02; done
"""


def test_slots_of_a_host_meet_at_a_file_that_nobody_else_can_take(tmp_path):
    relay, ran = tmp_path / "relay", tmp_path / "relay.ran"
    relay.write_text(PRETENDED)
    relay.chmod(0o755)
    unguessable = os.urandom(16).hex()
    engines = ipp.PSIJ(executor="pbs", python=str(relay))
    slot = engines._slot_script(BlockRequest("lab", tmp_path, 2, {}), "psij-abcdef", unguessable)
    lock = Path(f"/tmp/broadleaf-{unguessable}")
    slots = [subprocess.Popen(["sh", "-c", f"umask 0; {slot}"], stdout=subprocess.DEVNULL) for _ in range(2)]
    try:
        assert until(ran.exists)
        assert lock.lstat().st_mode & 0o777 == 0o600
        assert "psij-abcdef" not in lock.name
        (tmp_path / "relay.may_end").touch()
        assert [one.wait(30) for one in slots] == [0, 0]
    finally:
        for one in slots:
            one.kill()
    assert ran.read_text() == "psij-abcdef\n"
    assert not lock.exists()
