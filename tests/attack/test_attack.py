"""The attack for a quarter of a minute; `make soak MINUTES=30` is the long form."""

import json
import subprocess
from pathlib import Path

import pytest
from attack import interrupts, soak

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(240)
def test_a_short_attack():
    found = soak.run(15.0, seed=1)
    assert found["operations"].total() > 20, "the attackers hardly did anything"
    assert not found["wrong"], "\n".join(found["wrong"])
    assert not found["excess"], json.dumps([found["excess"], found["held"]])


@pytest.mark.timeout(240)
# Python drops an interrupt that arrives in the callback of a weak reference, and says so.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", interrupts.KINDS)
def test_ctrl_c_at_a_few_moments(kind):
    """What it interrupts would take much longer by itself."""
    found = interrupts.run(2, seed=1, within_s=10.0, names=[kind])
    assert found["ended"].total() == 2
    assert not found["wrong"], "\n".join(found["wrong"])


@pytest.mark.timeout(900)
def test_what_was_recorded_of_a_short_attack_is_replayed(tmp_path, monkeypatch):
    """Controller and relay do the same again, and the controller's invariants hold."""
    monkeypatch.setenv("BROADLEAF_RECORD_INPUTS", str(tmp_path / "inputs.txt"))
    assert not soak.run(5.0, seed=2)["wrong"]
    recordings = sorted(tmp_path.iterdir())
    assert len(recordings) == 2, recordings
    replay = ["cargo", "run", "--profile", "tests", "--locked", "--quiet", "--package", "broadleaf-sim", "--", "replay"]
    for path in recordings:
        # The first one may have to wait until it is compiled.
        done = subprocess.run([*replay, path], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "as recorded" in done.stdout
