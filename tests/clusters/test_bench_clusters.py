"""`python -m benchmarks clusters` on a bed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from debian_layer import CHECKOUT
from programs import check_nothing_is_left
from waiting import until

pytestmark = pytest.mark.timeout(300)


def test_engines_are_started_and_measured(slurm, ssh_hosts, tmp_path):
    site = tmp_path / "site.toml"
    site.write_text(slurm.description())
    command = [sys.executable, "-m", "benchmarks", "clusters", "--quick", "--repeats", "1", "--json", "-"]
    done = subprocess.run(
        command,
        env=os.environ | {"BROADLEAF_BENCH_SITE_FILE": str(site)},
        capture_output=True,
        text=True,
        timeout=250,
        cwd=CHECKOUT,
        check=False,
    )
    records = {(one["peer"], one["case"], one["metric"]): one for one in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, done.stderr
    for key in (
        ("broadleaf", "slurm", "ready"),
        ("broadleaf", "slurm", "after_first_line"),
        ("broadleaf", "ssh", "ready"),
        ("broadleaf", "elastic", "after_first_line"),
        ("raw", "raw_job", "first_line"),
        ("raw", "raw_logins", "ready"),
    ):
        assert records[key]["median"] > 0
    beyond = records["broadleaf", "ssh", "ready"]["median"] - records["raw", "raw_logins", "ready"]["median"]
    assert records["broadleaf", "ssh", "beyond_raw"]["median"] == pytest.approx(beyond)
    # One that submits, and in the job one that asks for its end and one that starts the relays. After 3 s on a machine
    # with other work, one that asks how the job is.
    calls, ready_s = (records["broadleaf", "slurm", metric]["median"] for metric in ("scheduler_calls", "ready"))
    assert calls == 3 or (calls == 4 and ready_s > 3)
    assert until(lambda: not slurm.run("head", "squeue", "-h").stdout, 60)
    check_nothing_is_left(slurm)
