"""Some rounds of `chaos.py` for each scheduler: what is lost comes back, every task ends once, and nothing is left."""

from __future__ import annotations

import pytest
from chaos import AIMS, FAULTS, MADE, play_on
from programs import check_nothing_is_left

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("engines", MADE)
def test_a_cluster_keeps_its_size(request, bed, engines, aim):
    request.getfixturevalue({"ssh": "ssh_hosts"}.get(engines, engines))
    rounds = FAULTS[engines].index("controller") + 1
    code, said = play_on(bed, engines, aim, "--rounds", str(rounds))
    assert not code, said
    assert said.count("\nround ") + said.startswith("round ") == rounds, said
    check_nothing_is_left(bed)
