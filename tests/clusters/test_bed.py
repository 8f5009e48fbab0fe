"""Where there can be no hosts, tests that need them do not pass for skipped."""

import os
import subprocess
import sys

from debian_layer import CHECKOUT


def test_the_bed_does_not_see_what_another_broadleaf_of_this_user_uses(bed):
    for folder in (".ssh", ".local/state/broadleaf"):
        there = bed.path("n1", f"/root/{folder}")
        assert there.is_mount(), "nothing in it is the user's, and nothing has to be removed"
        assert there.stat().st_mode & 0o777 == 0o700


def test_without_hosts_tests_fail_with_the_reason(tmp_path):
    one = "tests/clusters/test_slurm_jobs.py::test_one_block_of_four_nodes"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one],
        cwd=CHECKOUT, env=os.environ | {"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "there can be no hosts here: " in done.stdout
    assert "1 error" in done.stdout
