"""`broadleaf run` in allocations of Slurm, two at once on the same nodes."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.sites.jobs import Jobs
from benchmarks.sites.site import Site

N_NODES = 2
RUN_TIMEOUT_S = 120.0
_SCRIPT = """
import socket, sys, broadleaf as ipp
print(sys.argv[1], *sorted(ipp.Client()[:].apply_sync(socket.gethostname)), flush=True)
sys.exit(int(sys.argv[1]))
"""


def runs(peer: Any, pairs: int) -> dict[str, float | list[float]]:
    """How many runs, out of this many pairs, found their cluster on both nodes and returned their program's code."""
    site = Site.here()
    jobs = Jobs(site)
    script = jobs.folder / "script.py"
    script.write_text(_SCRIPT)
    succeeded, times = 0, list[float]()
    try:
        for _ in range(pairs):
            begin = time.perf_counter()
            running = {code: _start(site, script, code) for code in (5, 6)}
            for code, one in running.items():
                said, _ = one.communicate(timeout=RUN_TIMEOUT_S)
                succeeded += said.split() == [str(code), *site.hosts[:N_NODES]] and one.returncode == code
            times.append(time.perf_counter() - begin)
    finally:
        jobs.finish()
    return {"runs": 2 * pairs, "succeeded": succeeded, "pair_time": times}


def _start(site: Site, script: Path, code: int) -> "subprocess.Popen[str]":
    nodes = (f"--nodes={N_NODES}", f"--nodelist={','.join(site.hosts[:N_NODES])}", "--ntasks-per-node=1")
    run = (sys.executable, "-m", "broadleaf", "run", "-n", "1", "--", sys.executable, str(script), str(code))
    command = ["srun", *nodes, "--overcommit", "--mpi=none", *run]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
