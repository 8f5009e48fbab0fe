"""Runs a command with a site on this machine: `python benchmarks/on_bed.py python -m benchmarks clusters`.

The site is the bed of the tests: hosts with networks, names and files of their own, with sshd and Slurm. The command
finds its description through the environment variable that `python -m benchmarks clusters` reads. Needs root and
Debian.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
CPUS_PER_HOST = 16


def main() -> int:
    """The command's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, help="hosts beside the one that engines are started from")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    chosen = parser.parse_args()
    sys.path[:0] = [str(TESTS)]
    from bed import Bed
    from bed.slurmd import start_slurm
    from bed.sshd import open_with_key, start_sshd
    from debian_layer import LayerUnavailable

    try:
        bed = Bed(chosen.hosts)
    except LayerUnavailable as error:
        sys.exit(str(error))
    try:
        open_with_key(bed)
        for name in bed.names[1:]:
            start_sshd(bed, name)
        start_slurm(bed, cpus_per_host=CPUS_PER_HOST)
        with tempfile.NamedTemporaryFile("w", prefix="site-", suffix=".toml") as file:
            file.write(bed.description())
            file.flush()
            return subprocess.run(
                chosen.command, env=os.environ | {"BROADLEAF_BENCH_SITE_FILE": file.name}, check=False
            ).returncode
    finally:
        bed.close()


if __name__ == "__main__":
    sys.exit(main())
