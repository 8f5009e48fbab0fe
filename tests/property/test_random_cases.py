"""Some of the random cases; `random_cases.py --cases 20000` runs as many as you like."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("random_cases.py")
CASES = 300


@pytest.mark.timeout(240)
def test_what_comes_back_is_what_a_process_pool_brings():
    # A program of its own, because what its `__main__` defines is a part of it.
    found = subprocess.run(
        [sys.executable, str(PROGRAM), "--cases", str(CASES), "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert found.returncode == 0, found.stdout[-10_000:] + found.stderr[-5_000:]
    assert f"{CASES} cases, 0 differ" in found.stdout
