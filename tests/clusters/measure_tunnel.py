"""Figures of the guide "A cluster from your laptop": direct TLS beside the ssh tunnel, on the bed's hosts.

Run it as ``PYTHONPATH=tests .venv/bin/python tests/clusters/measure_tunnel.py --rounds 5``. The head is
the laptop; n1 has an sshd, and a controller with two engines.
"""

from __future__ import annotations

import sys

from bed import Bed
from bed.sshd import open_with_key, start_sshd
from debian_layer import CHECKOUT

_FILE = "/root/.local/state/broadleaf/profiles/default/default/client.json"


def main() -> None:
    """Makes the bed, measures, and prints the figures as JSON."""
    broadleaf = (sys.executable, "-m", "broadleaf")
    bed = Bed(1)
    try:
        open_with_key(bed)
        start_sshd(bed, "n1")
        bed.run("n1", *broadleaf, "start", "-n", "2", "--tcp", bed.host("n1").address)
        bed.write("head", "/root/client.json", bed.path("n1", _FILE).read_text(), 0o600)
        tasks = str(CHECKOUT / "benchmarks" / "hosts" / "tunnel_tasks.py")
        measure = (sys.executable, tasks, "/root/client.json", "n1", "--socket", *sys.argv[1:])
        print(bed.run("head", *measure, timeout_s=3600).stdout)
    finally:
        bed.close()


if __name__ == "__main__":
    main()
