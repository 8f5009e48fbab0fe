"""The examples of the guides that need hosts run as they stand."""

from __future__ import annotations

import re

import pytest
from debian_layer import CHECKOUT
from waiting import until

pytestmark = pytest.mark.timeout(240)


def examples(page: str) -> str:
    """The Python examples of a guide, as one program."""
    text = (CHECKOUT / "docs" / "guides" / page).read_text()
    return "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_ssh(ssh_hosts):
    hosts = ssh_hosts.python(examples("ssh.md"), timeout_s=200).stdout
    assert sorted(re.findall(r"'(n\d)'", hosts)) == ["n1", "n1", "n2", "n2"]
    assert until(lambda: not ssh_hosts.processes()), ssh_hosts.processes()


def test_slurm(slurm):
    hosts = slurm.python(examples("slurm.md"), timeout_s=200, BROADLEAF_DIR="/shared/broadleaf").stdout
    assert re.fullmatch(r"\['n\d', 'n\d', 'n\d', 'n\d'\]\n", hosts)
    assert until(lambda: not slurm.processes()), slurm.processes()
