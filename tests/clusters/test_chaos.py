"""Two rounds of `chaos.py` for each scheduler: what is lost comes back, every task ends once, and nothing is left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from chaos import AIMS, MADE
from programs import SHARED, check_nothing_is_left

pytestmark = pytest.mark.timeout(400)

CHAOS = Path(__file__).with_name("chaos.py")


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("engines", MADE)
def test_a_cluster_keeps_its_size(request, bed, engines, aim):
    request.getfixturevalue({"ssh": "ssh_hosts"}.get(engines, engines))
    command = [sys.executable, str(CHAOS), engines, aim, "--rounds", "2", "--inside"]
    said = bed.run("head", *command, timeout_s=300, **SHARED).stdout
    assert said.count("engines are back after") == 2, said
    check_nothing_is_left(bed)
