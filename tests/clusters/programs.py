"""Programs that tests run on the head of a bed."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from bed import Bed
from debian_layer import CHECKOUT
from refusals import REFUSED_WITHIN_S, idle_s
from waiting import until

# As at a site, all hosts see it.
SHARED = {"BROADLEAF_DIR": "/shared/broadleaf"}
_START = """
import json, socket, broadleaf as ipp
with {cluster} as rc:
    assert len(set(rc[:].apply_sync(hash, "leaf"))) == 1, "all hosts have the same hashes"
    print(json.dumps([rc.ids, rc[:].apply_sync(socket.gethostname)]))
"""
_REFUSED = """
import broadleaf as ipp
from broadleaf.errors import ClusterStartError
print("asks", flush=True)
try:
    with {cluster}:
        print("started")
except ClusterStartError as error:
    print(error)
"""


def started(bed: Bed, cluster: str, **env: str) -> tuple[list[int], list[str]]:
    """Ids and hosts of the engines of a cluster that was started on the head, and stopped."""
    ids, hosts = json.loads(bed.python(_START.format(cluster=cluster), timeout_s=200, **env).stdout)
    return ids, sorted(hosts)


def refusal(bed: Bed, cluster: str, host: str = "head", **env: str) -> str:
    """The error, within `REFUSED_WITHIN_S`, of a cluster that does not start; no process of it is left."""
    command = bed.command(host, [sys.executable, "-c", _REFUSED.format(cluster=cluster)], env)
    asking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    begun = asking.stdout.readline()
    idle_since_s = idle_s()
    in_time = until(lambda: asking.poll() is not None or idle_s() - idle_since_s > REFUSED_WITHIN_S, timeout_s=150)
    in_time = in_time and asking.poll() is not None
    asking.kill()
    said, errors = asking.communicate()
    assert in_time, f"no refusal within {REFUSED_WITHIN_S:g} s: {said}{errors}"
    assert begun == "asks\n", errors
    assert not asking.returncode, errors
    check_nothing_is_left(bed)
    return said


def check_nothing_is_left(bed: Bed) -> None:
    """No Broadleaf process is on any host, or they are just ending."""
    assert until(lambda: not bed.processes(), 60), bed.processes()


def examples(page: str) -> str:
    """The Python examples of a guide, as one program."""
    text = (CHECKOUT / "docs" / "guides" / page).read_text()
    return "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
