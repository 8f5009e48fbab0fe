"""A release, built once for these tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


class Release(NamedTuple):
    """The files of a release."""

    wheel: Path
    sources: Path
    lab_wheel: Path
    lab_sources: Path
    report: str


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """What `make wheels` builds, with a core that compiles faster."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "tools/wheels.py", "--profile", "tests", "--out", str(out)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = [path for pattern in ("broadleaf-*", "broadleaf_lab-*") for path in sorted(out.glob(pattern))]
    by_kind = {(path.name.startswith("broadleaf_lab"), path.suffix): path for path in files}
    assert len(by_kind) == len(files) == 4
    return Release(
        by_kind[False, ".whl"], by_kind[False, ".gz"], by_kind[True, ".whl"], by_kind[True, ".gz"], done.stdout
    )
