"""Measurements between hosts that are namespaces of this machine: those of the tests, `tests/bed`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
