"""The attack for a quarter of a minute; `make soak MINUTES=30` is the long form."""

import json

import pytest
from attack import interrupts, soak


@pytest.mark.timeout(240)
def test_a_short_attack():
    found = soak.run(15.0, seed=1)
    assert found["operations"].total() > 20, "the attackers hardly did anything"
    assert not found["wrong"], "\n".join(found["wrong"])
    assert not found["excess"], json.dumps([found["excess"], found["held"]])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", interrupts.KINDS)
def test_ctrl_c_at_a_few_moments(kind):
    """What it interrupts would take much longer by itself."""
    found = interrupts.run(2, seed=1, within_s=10.0, names=[kind])
    assert found["ended"].total() == 2
    assert not found["wrong"], "\n".join(found["wrong"])
