"""Programs that tests run on the head of a bed."""

from __future__ import annotations

import json
import re

from bed import Bed
from debian_layer import CHECKOUT
from waiting import until

# As at a site, all hosts see it.
SHARED = {"BROADLEAF_DIR": "/shared/broadleaf"}
_START = """
import json, socket, broadleaf as ipp
with {cluster} as rc:
    print(json.dumps([rc.ids, rc[:].apply_sync(socket.gethostname)]))
"""
_REFUSED = """
import broadleaf as ipp
from broadleaf.cluster.start_error import ClusterStartError
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


def refusal(bed: Bed, cluster: str, **env: str) -> str:
    """The error of a cluster that does not start; no process of it is left."""
    said = bed.python(_REFUSED.format(cluster=cluster), timeout_s=200, **env).stdout
    check_nothing_is_left(bed)
    return said


def check_nothing_is_left(bed: Bed) -> None:
    """No Broadleaf process is on any host, or they are just ending."""
    assert until(lambda: not bed.processes(), 60), bed.processes()


def examples(page: str) -> str:
    """The Python examples of a guide, as one program."""
    text = (CHECKOUT / "docs" / "guides" / page).read_text()
    return "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
